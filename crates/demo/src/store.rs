//! Keys and values in shards; each shard forgets its oldest key when it is full.

use crate::points::kv;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 4;
const KEYS_PER_SHARD: usize = 48;

type Shard = VecDeque<(String, Vec<u8>)>;

/// The store.
#[derive(Debug, Default)]
pub(crate) struct Store {
    shards: [Mutex<Shard>; SHARDS],
}

impl Store {
    /// The value of a key.
    #[owlet::traced(name = "kv::store::get", skip(self))]
    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let (number, shard) = self.shard(key);
        let at = find(&shard, number, key)?;
        shard.get(at).map(|(_, value)| value.clone())
    }

    /// Sets a key.
    #[owlet::traced(name = "kv::store::set", skip(self))]
    pub(crate) fn set(&self, key: &str, value: &[u8]) {
        let (number, mut shard) = self.shard(key);
        if let Some(at) = find(&shard, number, key) {
            shard.remove(at);
        } else if shard.len() >= KEYS_PER_SHARD
            && let Some((oldest, value)) = shard.pop_front()
        {
            owlet::trace!(kv::evict, number, &oldest, value.len().try_into().unwrap_or(u32::MAX));
        }
        shard.push_back((key.to_owned(), value.to_vec()));
    }

    /// Forgets a key; whether it was there.
    pub(crate) fn del(&self, key: &str) -> bool {
        let (number, mut shard) = self.shard(key);
        let at = find(&shard, number, key);
        at.and_then(|at| shard.remove(at)).is_some()
    }

    fn shard(&self, key: &str) -> (u8, MutexGuard<'_, Shard>) {
        let hash = key.bytes().fold(0_u8, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte));
        let number = hash % SHARDS as u8;
        let [a, b, c, d] = &self.shards;
        let shard = match number {
            0 => a,
            1 => b,
            2 => c,
            _ => d,
        };
        (number, shard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn find(shard: &Shard, number: u8, key: &str) -> Option<usize> {
    let at = shard.iter().position(|(known, _)| known == key);
    let steps = at.map_or(shard.len(), |at| at + 1);
    owlet::trace!(kv::lookup, key, number, steps.try_into().unwrap_or(u32::MAX), at.is_some());
    at
}
