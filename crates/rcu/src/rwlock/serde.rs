//! A lock is written as its value, and read as one that nobody holds.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::lock::PerCpuRwLock;

/// Takes the lock shared meanwhile, and waits for that.
impl<T: ?Sized + Serialize> Serialize for PerCpuRwLock<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (*self.read()).serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for PerCpuRwLock<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::new)
    }
}
