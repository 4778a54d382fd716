//! Maps: what programs keep and what the host reads.
//!
//! All memory of a map is there before the first program runs and stays until the last user is gone;
//! nothing here allocates, waits or makes a system call, and everything may be interrupted by a signal
//! handler that uses the same map.
//!
//! | kind | lookup | update | when two meet |
//! |---|---|---|---|
//! | array | address of the value | in place | words are whole, values may be mixed |
//! | per-CPU array | address of this CPU's value | in place | a thread that migrates in mid-program shares a value: plain increments may be lost, atomic ones not |
//! | hash | lock-free | per-bucket try-lock | busy: counted, the program gets `-EBUSY` |
//! | ring buffer | - | lock-free reservation | full: counted, the program gets `-EAGAIN` |
//!
//! A value's address stays valid as long as the map; after a delete it may be another key's value, as in
//! the kernel's preallocated maps.

mod hash;
mod order;
mod ring;

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::error::{Error, Result};
use crate::image::{MAX_KEY, MapDef, MapKind};
use crate::memory::{self, Values};

use hash::Hash;
pub(crate) use ring::Reservation;
use ring::Ring;

/// Errors that helpers return, as the kernel does.
pub(crate) mod errno {
    pub(crate) const ENOENT: i64 = -2;
    pub(crate) const E2BIG: i64 = -7;
    pub(crate) const EAGAIN: i64 = -11;
    pub(crate) const EFAULT: i64 = -14;
    pub(crate) const EBUSY: i64 = -16;
    pub(crate) const EEXIST: i64 = -17;
    pub(crate) const EINVAL: i64 = -22;
}

/// When an update may happen. Numbers are the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Update {
    /// Always.
    Any = 0,
    /// If the key is not there.
    NoExist = 1,
    /// If the key is there.
    Exist = 2,
}

impl Update {
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        [Self::Any, Self::NoExist, Self::Exist].into_iter().find(|flag| *flag as u64 == number)
    }
}

/// Why a map did not do what the host asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The kind of map has no such operation, or a size is wrong.
    Invalid,
    /// No such key.
    Missing,
    /// The key is there already.
    Exists,
    /// All entries are taken, or the number is beyond the last.
    Full,
    /// Somebody else was at the same bucket for longer than we wait.
    Busy,
}

impl core::fmt::Display for MapError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Invalid => "the map has no such operation, or a size is wrong",
            Self::Missing => "no such key",
            Self::Exists => "the key exists",
            Self::Full => "the map is full",
            Self::Busy => "the bucket is busy",
        })
    }
}

impl std::error::Error for MapError {}

impl MapError {
    pub(crate) fn errno(self) -> i64 {
        match self {
            Self::Invalid => errno::EINVAL,
            Self::Missing => errno::ENOENT,
            Self::Exists => errno::EEXIST,
            Self::Full => errno::E2BIG,
            Self::Busy => errno::EBUSY,
        }
    }
}

/// What did not work in a map since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapStats {
    /// Operations given up because a bucket was busy.
    pub busy: u64,
    /// Updates refused because all entries are taken.
    pub full: u64,
    /// Records that found no room in a ring buffer, or were too large for it.
    pub dropped: u64,
    /// Records that a run reserved in a ring buffer and left so when it was cut short: discarded for it.
    pub abandoned: u64,
}

/// Counters behind [`MapStats`].
#[derive(Debug, Default)]
struct Counts {
    busy: AtomicU64,
    full: AtomicU64,
    dropped: AtomicU64,
    abandoned: AtomicU64,
}

/// A map.
#[derive(Debug)]
pub struct Map {
    def: MapDef,
    store: Store,
    counts: Counts,
}

#[derive(Debug)]
enum Store {
    Array(Values),
    /// One area per CPU, `per_cpu` values apart.
    PerCpu {
        values: Values,
        per_cpu: usize,
    },
    Hash(Hash),
    Ring(Ring),
}

impl Map {
    /// Makes the map; `budget` is what is left of the memory that a module may take, in bytes.
    pub(crate) fn new(def: &MapDef, budget: &mut usize) -> Result<Self> {
        def.check()?;
        let entries = usize::try_from(def.max_entries).unwrap_or(usize::MAX);
        let size = usize::try_from(def.value_size).unwrap_or(usize::MAX);
        let key = usize::try_from(def.key_size).unwrap_or(usize::MAX);
        let stride = size.next_multiple_of(8).max(8);
        // CPUs are 128 bytes apart, so that none writes into another's lines.
        let per_cpu = entries.saturating_add(128_usize.div_ceil(stride));
        let (count, each) = match def.kind {
            MapKind::RingBuf => (entries, 1),
            MapKind::Array => (entries, stride),
            MapKind::PerCpuArray => (per_cpu.saturating_mul(owlet_percpu::cpus()), stride),
            MapKind::Hash => (entries, stride + key.next_multiple_of(8) + 16),
        };
        let wanted = count.checked_mul(each);
        let left = wanted.and_then(|wanted| budget.checked_sub(wanted));
        *budget = left.ok_or_else(|| {
            Error::map(&def.name, format!("more memory than the {budget} bytes that are left"))
        })?;
        let store = match def.kind {
            MapKind::Array => Store::Array(Values::new(entries, size)?),
            MapKind::PerCpuArray => Store::PerCpu { values: Values::new(count, size)?, per_cpu },
            MapKind::Hash => Store::Hash(Hash::new(entries, key, Values::new(entries, size)?)),
            MapKind::RingBuf => Store::Ring(Ring::new(entries)),
        };
        let map = Self { def: def.clone(), store, counts: Counts::default() };
        if let (Store::Array(values), false) = (&map.store, def.data.is_empty()) {
            // SAFETY: `check` bounded the data by the size of a value, of which there is at least one.
            unsafe { memory::copy(def.data.as_ptr(), values.base(), def.data.len()) };
        }
        Ok(map)
    }

    /// Its definition.
    #[must_use]
    pub fn def(&self) -> &MapDef {
        &self.def
    }

    /// What did not work so far.
    #[must_use]
    pub fn stats(&self) -> MapStats {
        MapStats {
            busy: self.counts.busy.load(Relaxed),
            full: self.counts.full.load(Relaxed),
            dropped: self.counts.dropped.load(Relaxed),
            abandoned: self.counts.abandoned.load(Relaxed),
        }
    }

    /// Copies a value into `value`. Of a per-CPU array, all CPUs' values one behind the other: see
    /// [`Map::read_size`].
    ///
    /// # Errors
    /// [`MapError::Missing`], [`MapError::Busy`] (a hash that changes all the time),
    /// [`MapError::Invalid`] (ring buffer, wrong sizes).
    pub fn read(&self, key: &[u8], value: &mut [u8]) -> core::result::Result<(), MapError> {
        if key.len() != self.key_size() || value.len() != self.read_size() {
            return Err(MapError::Invalid);
        }
        let index = || key_index(key).ok_or(MapError::Missing);
        match &self.store {
            Store::Array(values) => {
                let from = values.at(index()?).ok_or(MapError::Missing)?;
                // SAFETY: a value of this map, of the length of `value` (`read_size`).
                unsafe { memory::copy_out(from, value) };
            }
            Store::PerCpu { values, per_cpu } => {
                let index = index()?;
                let size = values.size;
                for (cpu, piece) in value.chunks_exact_mut(size).enumerate() {
                    let index = (index < self.entries()).then_some(cpu * per_cpu + index);
                    let from = index.and_then(|index| values.at(index)).ok_or(MapError::Missing)?;
                    // SAFETY: a value of this map, `size` bytes long.
                    unsafe { memory::copy_out(from, piece) };
                }
            }
            Store::Hash(hash) => hash.read(&Key::of(key), value).inspect_err(|e| self.count(*e))?,
            Store::Ring(_) => return Err(MapError::Invalid),
        }
        Ok(())
    }

    /// Bytes that [`Map::read`] gives: a value, or one for each CPU.
    #[must_use]
    pub fn read_size(&self) -> usize {
        match &self.store {
            Store::PerCpu { values, per_cpu } => values.size * (values.count / per_cpu),
            _ => self.value_size(),
        }
    }

    /// Sets a value from the host. Of a per-CPU array, every CPU's.
    ///
    /// # Errors
    /// As the helper of programs: see [`MapError`].
    pub fn update(
        &self,
        key: &[u8],
        value: &[u8],
        flag: Update,
    ) -> core::result::Result<(), MapError> {
        if key.len() != self.key_size() || value.len() != self.value_size() {
            return Err(MapError::Invalid);
        }
        let Store::PerCpu { values, per_cpu } = &self.store else {
            // SAFETY: key and value have the map's sizes.
            return unsafe { self.update_raw(key.as_ptr(), value.as_ptr(), flag) };
        };
        let index = key_index(key).filter(|index| *index < self.entries());
        let index = index.ok_or(MapError::Full)?;
        if flag == Update::NoExist {
            return Err(MapError::Exists);
        }
        for at in (index..values.count).step_by(*per_cpu).filter_map(|index| values.at(index)) {
            // SAFETY: a value of this map, of the length of `value`.
            unsafe { memory::copy(value.as_ptr(), at, value.len()) };
        }
        Ok(())
    }

    /// Takes a key out of a hash.
    ///
    /// # Errors
    /// [`MapError::Invalid`] for other kinds, [`MapError::Missing`], [`MapError::Busy`].
    pub fn delete(&self, key: &[u8]) -> core::result::Result<(), MapError> {
        if key.len() != self.key_size() {
            return Err(MapError::Invalid);
        }
        // SAFETY: the key has the map's size.
        unsafe { self.delete_raw(key.as_ptr()) }
    }

    /// The keys that are there, in no order: all numbers of an array, none of a ring buffer. Of a hash
    /// that changes meanwhile, keys of the time of the call, some perhaps twice. Allocates; for the host.
    #[must_use]
    pub fn keys(&self) -> Vec<Vec<u8>> {
        match &self.store {
            Store::Array(_) | Store::PerCpu { .. } => {
                (0..self.def.max_entries).map(|index| index.to_le_bytes().to_vec()).collect()
            }
            Store::Hash(hash) => hash.keys(),
            Store::Ring(_) => Vec::new(),
        }
    }

    /// Takes the oldest record out of a ring buffer; `None` if there is none, or the map is of another
    /// kind. One consumer at a time; a second one gets `None`. Allocates; for the host.
    #[must_use]
    pub fn pop(&self) -> Option<Vec<u8>> {
        match &self.store {
            Store::Ring(ring) => ring.pop(),
            _ => None,
        }
    }

    fn entries(&self) -> usize {
        usize::try_from(self.def.max_entries).unwrap_or(0)
    }

    pub(crate) fn key_size(&self) -> usize {
        usize::try_from(self.def.key_size).unwrap_or(0)
    }

    pub(crate) fn value_size(&self) -> usize {
        usize::try_from(self.def.value_size).unwrap_or(0)
    }

    fn count(&self, error: MapError) {
        match error {
            MapError::Busy => self.counts.busy.fetch_add(1, Relaxed),
            MapError::Full => self.counts.full.fetch_add(1, Relaxed),
            _ => 0,
        };
    }

    /// Values that programs may hold addresses of.
    pub(crate) fn values(&self) -> Option<&Values> {
        match &self.store {
            Store::Array(values) | Store::PerCpu { values, .. } => Some(values),
            Store::Hash(hash) => Some(hash.values()),
            Store::Ring(_) => None,
        }
    }

    /// The values of a plain array, which compiled code looks up by itself.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn plain_array(&self) -> Option<&Values> {
        match &self.store {
            Store::Array(values) => Some(values),
            _ => None,
        }
    }

    /// Address of the value of a key, or null.
    ///
    /// # Safety
    /// `key` is valid for reads of `key_size` bytes.
    pub(crate) unsafe fn lookup(&self, key: *const u8) -> *mut u8 {
        let null = core::ptr::null_mut();
        match &self.store {
            Store::Array(values) => {
                // SAFETY: the caller's: an array's key has 4 bytes.
                let index = unsafe { memory::load(key, 4) };
                usize::try_from(index).ok().and_then(|index| values.at(index)).unwrap_or(null)
            }
            Store::PerCpu { values, per_cpu } => {
                // SAFETY: as above.
                let index = unsafe { memory::load(key, 4) };
                if index >= u64::from(self.def.max_entries) {
                    return null;
                }
                let first = owlet_percpu::current_cpu() * per_cpu;
                let index = usize::try_from(index).ok().map(|index| first + index);
                index.and_then(|index| values.at(index)).unwrap_or(null)
            }
            Store::Hash(hash) => {
                // SAFETY: the caller's; a hash's keys have at most `MAX_KEY` bytes.
                let key = unsafe { Key::read(key, self.key_size()) };
                match hash.lookup(&key) {
                    Ok(value) => value,
                    Err(error) => {
                        self.count(error);
                        null
                    }
                }
            }
            Store::Ring(_) => null,
        }
    }

    /// Sets a value; of a per-CPU array this CPU's.
    ///
    /// # Safety
    /// `key` and `value` are valid for reads of `key_size` and `value_size` bytes.
    pub(crate) unsafe fn update_raw(
        &self,
        key: *const u8,
        value: *const u8,
        flag: Update,
    ) -> core::result::Result<(), MapError> {
        match &self.store {
            Store::Array(_) | Store::PerCpu { .. } => {
                // SAFETY: the caller's.
                let at = unsafe { self.lookup(key) };
                if at.is_null() {
                    return Err(MapError::Full);
                }
                if flag == Update::NoExist {
                    return Err(MapError::Exists);
                }
                // SAFETY: `at` is a value of this map, `value` the caller's.
                unsafe { memory::copy(value, at, self.value_size()) };
                Ok(())
            }
            Store::Hash(hash) => {
                // SAFETY: the caller's; a hash's keys have at most `MAX_KEY` bytes.
                let key = unsafe { Key::read(key, self.key_size()) };
                // SAFETY: the caller's value.
                unsafe { hash.update(&key, value, flag) }.inspect_err(|error| self.count(*error))
            }
            Store::Ring(_) => Err(MapError::Invalid),
        }
    }

    /// Takes a key out.
    ///
    /// # Safety
    /// `key` is valid for reads of `key_size` bytes.
    pub(crate) unsafe fn delete_raw(&self, key: *const u8) -> core::result::Result<(), MapError> {
        let Store::Hash(hash) = &self.store else { return Err(MapError::Invalid) };
        // SAFETY: the caller's; a hash's keys have at most `MAX_KEY` bytes.
        let key = unsafe { Key::read(key, self.key_size()) };
        hash.delete(&key).inspect_err(|error| self.count(*error))
    }

    /// Puts a record into a ring buffer.
    ///
    /// # Safety
    /// `data` is valid for reads of `len` bytes.
    pub(crate) unsafe fn output(&self, data: *const u8, len: u64) -> i64 {
        let Store::Ring(ring) = &self.store else { return errno::EINVAL };
        let Ok(len) = usize::try_from(len) else { return errno::E2BIG };
        // SAFETY: the caller's.
        let done = unsafe { ring.push(data, len) };
        if done.is_err() {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
        done.map_or_else(|error| error, |()| 0)
    }

    /// Takes room for a record in a ring buffer; `None` is counted.
    pub(crate) fn reserve(&self, len: u64) -> Option<Reservation> {
        let Store::Ring(ring) = &self.store else { return None };
        let found = usize::try_from(len).ok().and_then(|len| ring.reserve(len).ok());
        if found.is_none() {
            self.lost();
        }
        found
    }

    /// A record that no room was asked for is lost.
    #[cold]
    pub(crate) fn lost(&self) {
        self.counts.dropped.fetch_add(1, Relaxed);
    }

    /// Ends a reservation of `len` bytes.
    pub(crate) fn commit(&self, at: u64, len: usize, keep: bool) {
        if let Store::Ring(ring) = &self.store {
            ring.commit(at, len, keep);
        }
    }

    /// Ends a reservation that its run has left.
    #[cold]
    pub(crate) fn abandon(&self, at: u64, len: usize) {
        self.counts.abandoned.fetch_add(1, Relaxed);
        self.commit(at, len, false);
    }

    /// What `bpf_ringbuf_query` answers.
    pub(crate) fn query(&self, what: u64) -> u64 {
        match &self.store {
            Store::Ring(ring) => ring.query(what),
            _ => 0,
        }
    }
}

fn key_index(key: &[u8]) -> Option<usize> {
    let key: [u8; 4] = key.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(key)).ok()
}

/// Words of the longest key.
const KEY_WORDS: usize = MAX_KEY as usize / 8;

/// A key, copied once: what a program points to may change meanwhile.
struct Key {
    words: [core::mem::MaybeUninit<u64>; KEY_WORDS],
    len: usize,
}

impl Key {
    fn of(bytes: &[u8]) -> Self {
        // SAFETY: a slice is valid for reads of its length, which the caller compared with the map's.
        unsafe { Self::read(bytes.as_ptr(), bytes.len()) }
    }

    /// # Safety
    /// `at` is valid for reads of `bytes` bytes, at most [`MAX_KEY`].
    unsafe fn read(at: *const u8, bytes: usize) -> Self {
        let mut words = [const { core::mem::MaybeUninit::uninit() }; KEY_WORDS];
        let mut left = bytes;
        let mut from = at;
        let mut len = 0;
        for word in &mut words {
            if left == 0 {
                break;
            }
            let piece = left.min(8);
            // SAFETY: `piece` bytes of the caller's range.
            word.write(unsafe { memory::load(from, piece) });
            from = from.wrapping_add(piece);
            left -= piece;
            len += 1;
        }
        Self { words, len }
    }

    /// Its words; the last one padded with 0.
    fn words(&self) -> &[u64] {
        let words = self.words.get(..self.len).unwrap_or(&[]);
        // SAFETY: `read` has written the first `len` words.
        unsafe { words.assume_init_ref() }
    }
}
