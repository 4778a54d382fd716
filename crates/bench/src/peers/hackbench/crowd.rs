//! hackbench: groups of senders and receivers that pass small messages through socket pairs.
//!
//! As `perf bench sched messaging` has it: each receiver of a group has a socket pair, each sender
//! of the group sends every receiver so many messages of 100 bytes. All wait at a gate, and each
//! takes its own CPU time, user and system, from there to its end.

use super::checker::{Data, Event, seen};
use super::variants::Variant;
use crate::harness::inner::{die_with_parent, pin};
use crate::harness::serve::clock;
use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};

/// hackbench's DATASIZE.
const SIZE: usize = 100;

/// A run's parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Processes; else threads.
    pub(super) processes: bool,
    /// Groups.
    pub(super) groups: usize,
    /// Senders of a group, and as many receivers.
    pub(super) fds: usize,
    /// Messages from each sender to each receiver of its group.
    pub(super) loops: u64,
    /// Events in a hundred messages.
    pub(super) events: u64,
    /// All on one CPU.
    pub(super) pinned: bool,
}

/// What one sender or receiver has to say, in memory that processes share.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Said {
    cpu_ns: AtomicU64,
    messages: AtomicU64,
    events: AtomicU64,
    violations: AtomicU64,
}

enum Role {
    /// To all receivers of the group.
    Send(Vec<UnixStream>),
    /// So many messages.
    Receive(UnixStream, u64),
}

/// The way to the gate and through it.
struct Gate {
    ready: UnixStream,
    open: UnixStream,
}

/// Runs it with `V`; CPU and wall nanoseconds, messages received, events checked, violations.
pub(super) fn run<V: Variant>(shape: Shape, data: &'static Data) -> Result<Vec<u64>> {
    let roles = roles(shape)?;
    let said = shared(roles.len())?;
    let ((ready, their_ready), (open, their_open)) = (UnixStream::pair()?, UnixStream::pair()?);
    let gate = &Gate { ready: their_ready, open: their_open };
    let mut open = Open { ready, open, count: roles.len() };
    let one = |role: Role, said: &Said| member::<V>(shape, data, role, gate, said);
    let wall_ns = if shape.processes {
        let children = roles.into_iter().zip(said).map(|(role, said)| fork(|| one(role, said)));
        let children = children.collect::<Result<Vec<_>>>()?;
        let start = open.now()?;
        children.into_iter().try_for_each(wait)?;
        clock(libc::CLOCK_MONOTONIC) - start
    } else {
        let one = &one;
        std::thread::scope(|scope| {
            let threads = roles.into_iter().zip(said);
            let threads = threads.map(|(role, said)| scope.spawn(move || one(role, said)));
            let threads: Vec<_> = threads.collect();
            let start = open.now()?;
            for thread in threads {
                ensure!(thread.join().is_ok_and(|result| result.is_ok()), "a thread failed");
            }
            Ok(clock(libc::CLOCK_MONOTONIC) - start)
        })?
    };
    let sum =
        |of: fn(&Said) -> &AtomicU64| said.iter().map(|s| of(s).load(Ordering::Acquire)).sum();
    let result = vec![
        sum(|s| &s.cpu_ns),
        wall_ns,
        sum(|s| &s.messages),
        sum(|s| &s.events),
        sum(|s| &s.violations),
    ];
    unshare(said);
    Ok(result)
}

/// Receivers first, so that they wait when the first message comes.
fn roles(shape: Shape) -> Result<Vec<Role>> {
    let (mut receivers, mut senders) = (Vec::new(), Vec::new());
    for _ in 0..shape.groups {
        let pairs = (0..shape.fds).map(|_| UnixStream::pair());
        let (to, from): (Vec<_>, Vec<_>) =
            pairs.collect::<std::io::Result<Vec<_>>>().context("make sockets")?.into_iter().unzip();
        let each = shape.loops * shape.fds as u64;
        receivers.extend(from.into_iter().map(|from| Role::Receive(from, each)));
        for _ in 0..shape.fds {
            let to = to.iter().map(UnixStream::try_clone).collect::<std::io::Result<_>>()?;
            senders.push(Role::Send(to));
        }
    }
    receivers.extend(senders);
    Ok(receivers)
}

/// Our side of the gate.
struct Open {
    ready: UnixStream,
    open: UnixStream,
    count: usize,
}

impl Open {
    /// Waits until all are there and lets them through; when.
    fn now(&mut self) -> Result<u64> {
        let mut all = vec![0; self.count];
        self.ready.read_exact(&mut all).context("wait for all")?;
        let start = clock(libc::CLOCK_MONOTONIC);
        self.open.write_all(&all).context("open the gate")?;
        Ok(start)
    }
}

/// What each sender and receiver does.
fn member<V: Variant>(
    shape: Shape,
    data: &'static Data,
    role: Role,
    gate: &Gate,
    said: &Said,
) -> Result<()> {
    if shape.pinned {
        pin(0);
    }
    let mut variant = V::thread(data);
    seen();
    (&gate.ready).write_all(&[1])?;
    (&gate.open).read_exact(&mut [0])?;
    let start = clock(libc::CLOCK_THREAD_CPUTIME_ID);
    // The sender's share of the events, in pairs; the receiver has the rest.
    let pairs = shape.events / 2;
    let messages = match role {
        Role::Send(to) => send(&mut variant, &to, shape.loops, pairs / 2)?,
        Role::Receive(from, n) => receive(&mut variant, from, n, pairs - pairs / 2)?,
    };
    let spent = clock(libc::CLOCK_THREAD_CPUTIME_ID) - start;
    let [events, violations] = seen();
    said.cpu_ns.store(spent, Ordering::Release);
    said.messages.store(messages, Ordering::Release);
    said.events.store(events, Ordering::Release);
    said.violations.store(violations, Ordering::Release);
    Ok(())
}

fn send(variant: &mut impl Variant, to: &[UnixStream], loops: u64, pairs: u64) -> Result<u64> {
    let message = [7; SIZE];
    let mut spread = Spread { pairs, so_far: 0 };
    for _ in 0..loops {
        for mut to in to {
            events(variant, spread.next());
            to.write_all(&message).context("send")?;
        }
    }
    Ok(0)
}

fn receive(variant: &mut impl Variant, mut from: UnixStream, n: u64, pairs: u64) -> Result<u64> {
    let mut message = [0; SIZE];
    let mut spread = Spread { pairs, so_far: 0 };
    for _ in 0..n {
        from.read_exact(&mut message).context("receive")?;
        events(variant, spread.next());
    }
    Ok(n)
}

/// So many pairs of events in a hundred messages, evenly.
struct Spread {
    pairs: u64,
    /// Hundredths of a pair.
    so_far: u64,
}

impl Spread {
    /// The next message's.
    fn next(&mut self) -> u64 {
        self.so_far += self.pairs;
        let whole = self.so_far / 100;
        self.so_far %= 100;
        whole
    }
}

/// Locks are taken and given back.
#[inline(always)]
pub(super) fn events(variant: &mut impl Variant, pairs: u64) {
    for pair in 0..pairs {
        let lock = 1 + (pair as u32 & 7);
        variant.event(Event { lock, taken: true });
        variant.event(Event { lock, taken: false });
    }
}

/// Zeroed memory that forked children share.
fn shared(count: usize) -> Result<&'static [Said]> {
    let bytes = count * size_of::<Said>();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, wherever the kernel likes.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
    ensure!(at != libc::MAP_FAILED, "share memory: {}", std::io::Error::last_os_error());
    // SAFETY: mapped just now, of that size, page-aligned, all zero, which is a valid `Said`; the
    // slice is given back, and then not used again, by `unshare`.
    Ok(unsafe { std::slice::from_raw_parts(at.cast(), count) })
}

fn unshare(said: &'static [Said]) {
    let at = said.as_ptr().cast_mut().cast();
    // SAFETY: what `shared` mapped; the caller has just used it for the last time.
    unsafe { libc::munmap(at, size_of_val(said)) };
}

/// A child that does `what` and ends. Only the worker's main thread forks, and is alone then.
fn fork(what: impl FnOnce() -> Result<()>) -> Result<libc::pid_t> {
    // SAFETY: no other thread exists, so the child has everything it needs.
    let pid = unsafe { libc::fork() };
    ensure!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        die_with_parent();
        let what = std::panic::AssertUnwindSafe(what);
        let code = i32::from(!std::panic::catch_unwind(what).is_ok_and(|result| result.is_ok()));
        // SAFETY: ends the child without the destructors of what it shares with its parent.
        unsafe { libc::_exit(code) };
    }
    Ok(pid)
}

fn wait(pid: libc::pid_t) -> Result<()> {
    let mut status = 0;
    // SAFETY: the pointer is to a live local.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    if waited != pid || status != 0 {
        bail!("a process failed (status {status:#x})");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_spread_evenly() {
        let mut spread = Spread { pairs: 250, so_far: 0 };
        let pairs: Vec<_> = (0..4).map(|_| spread.next()).collect();
        assert_eq!(pairs, [2, 3, 2, 3]);
        let sum: u64 = (0..96).map(|_| spread.next()).sum();
        assert_eq!(sum, 240);
    }
}
