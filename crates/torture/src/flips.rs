//! Code that changes while threads run it.
//!
//! A site as `owlet-attach` has them, off `a9 <rel32>`, on `e9 <rel32>`, in front of two ends that give
//! different results, at places that are as bad as can be: across a cache line, across a page. One thread
//! flips its first byte, millions of times; others call at full speed and check every result. The site's own
//! writer is tortured (`mem`), and what it relies on: that a single byte can be stored with no other care
//! (`direct`, into a page that is writable and executable).
//!
//! | way | writes | must |
//! |---|---|---|
//! | `direct` | the byte, no barrier | hold |
//! | `mem` | the byte, as `patch::Writer` does, and a barrier | hold |
//! | `five-stores` | a jump over a five-byte `nop`, byte by byte | crash |
//! | `unaligned` | the same with one store of eight bytes across a cache line | crash |
//! | `mem-five` | the same through `/proc/self/mem` | crash |
//!
//! The last three are the controls: they show that these eyes can see torn code, the last two where the first
//! byte and the others are in two lines (63, 4095). Every case is a process of its own. A way that must crash is judged as one that must hold: it fails.

use std::io::Error;
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use owlet_attach::patch::{self, Change, Writer};
use serde::Serialize;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Flips of each case of `direct`; the others, which are slower, have a tenth.
    #[arg(long, default_value_t = 20.0)]
    millions: f64,
    /// How long each case lasts at most.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Ways of writing, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "direct,mem")]
    ways: Vec<Way>,
    /// Where sites begin: bytes from the start of a page.
    #[arg(long, value_delimiter = ',', default_value = "32,61,63,4095")]
    offsets: Vec<u16>,
    /// Threads that call, in turn for each number.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// One JSON value on standard output instead of lines of text.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Way {
    Direct,
    Mem,
    FiveStores,
    Unaligned,
    MemFive,
}

impl Way {
    fn one_byte(self) -> bool {
        matches!(self, Self::Direct | Self::Mem)
    }

    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// What came of a case.
#[derive(Debug, Serialize)]
struct Outcome {
    way: Way,
    offset: u16,
    threads: usize,
    held: bool,
    /// The signal that ended the process, or 0.
    signal: i32,
    flips: u64,
    /// Calls that found the site off, and on.
    off: u64,
    on: u64,
    /// Calls with neither result, and flips that the flipping thread itself did not see.
    wrong: u64,
}

/// Runs all cases.
pub(crate) fn run(options: &Options) -> Result<bool> {
    let mut outcomes = Vec::new();
    for &way in &options.ways {
        for &offset in &options.offsets {
            for &threads in &options.threads {
                let outcome = case(options, way, offset, threads)?;
                if !options.json {
                    say!(
                        "flips {}: {} offset={offset} threads={threads} flips={} off={} on={} wrong={} \
                         signal={}",
                        way.name(),
                        if outcome.held { "PASS" } else { "FAIL" },
                        outcome.flips,
                        outcome.off,
                        outcome.on,
                        outcome.wrong,
                        outcome.signal
                    );
                }
                outcomes.push(outcome);
            }
        }
    }
    let held = outcomes.iter().all(|outcome| outcome.held);
    if options.json {
        say!("{}", serde_json::to_string(&outcomes)?);
    } else {
        let flips: u64 = outcomes.iter().map(|outcome| outcome.flips).sum();
        say!("flips: {} flips={flips}", if held { "PASS" } else { "FAIL" });
    }
    Ok(held)
}

/// What a case's process tells its parent.
#[derive(Default)]
struct Told {
    flips: AtomicU64,
    off: AtomicU64,
    on: AtomicU64,
    wrong: AtomicU64,
    stop: AtomicBool,
}

fn case(options: &Options, way: Way, offset: u16, threads: usize) -> Result<Outcome> {
    let told = map(libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)?;
    // SAFETY: a fresh page of zeroes, which are valid, aligned, and stay for good.
    let told = unsafe { &*told.cast::<Told>() };
    // SAFETY: this process has one thread.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = i32::from(child(options, way, offset, threads, told).is_err());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: a valid int.
    if pid < 0 || unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {
        return Err(Error::last_os_error()).context("fork and wait");
    }
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) != 0 {
        bail!("{} could not run", way.name());
    }
    let signal = if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 };
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let wrong = of(&told.wrong);
    let (flips, off, on) = (of(&told.flips), of(&told.off), of(&told.on));
    Ok(Outcome {
        way,
        offset,
        threads,
        held: signal == 0 && wrong == 0,
        signal,
        flips,
        off,
        on,
        wrong,
    })
}

fn map(protection: i32, sharing: i32) -> Result<*mut u8> {
    let flags = sharing | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, anywhere.
    let at = unsafe { libc::mmap(null_mut(), 3 * PAGE, protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(Error::last_os_error()).context("mmap");
    }
    Ok(at.cast())
}

const PAGE: usize = 4096;
const OFF: [u8; 5] = [0xa9, SLOW - 5, 0, 0, 0];
const ON: [u8; 5] = [0xe9, SLOW - 5, 0, 0, 0];
const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
/// From the site to its slow end.
const SLOW: u8 = 16;
/// What a call adds: off, and on.
const ADDS: (u64, u64) = (1, 1000);

/// The function: the site, `lea rax, [rdi + 1]`, `ret`; and, for the jump, `lea rax, [rdi + 1000]`, `ret`.
fn function(way: Way, offset: u16) -> Result<*mut u8> {
    let page = map(libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE)?;
    let mut code = [0xcc_u8; 24];
    code[..5].copy_from_slice(if way.one_byte() { &OFF } else { &NOP });
    code[5..10].copy_from_slice(&[0x48, 0x8d, 0x47, ADDS.0 as u8, 0xc3]);
    let [low, high, ..] = ADDS.1.to_le_bytes();
    code[SLOW as usize..].copy_from_slice(&[0x48, 0x8d, 0x87, low, high, 0, 0, 0xc3]);
    let at = page.wrapping_add(usize::from(offset) % (2 * PAGE));
    // SAFETY: three pages of ours; two and 24 bytes are enough.
    unsafe { at.copy_from_nonoverlapping(code.as_ptr(), code.len()) };
    let writable = if way == Way::Mem || way == Way::MemFive { 0 } else { libc::PROT_WRITE };
    let protection = libc::PROT_READ | libc::PROT_EXEC | writable;
    // SAFETY: pages of ours.
    if unsafe { libc::mprotect(page.cast(), 3 * PAGE, protection) } != 0 {
        return Err(Error::last_os_error()).context("mprotect");
    }
    Ok(at)
}

fn child(options: &Options, way: Way, offset: u16, threads: usize, told: &Told) -> Result<()> {
    let at = function(way, offset)?;
    // SAFETY: code of a function of that type.
    let call = unsafe { std::mem::transmute::<*mut u8, extern "C" fn(u64) -> u64>(at) };
    patch::register();
    let share = if way == Way::Direct { 1.0 } else { 0.1 };
    let most = (options.millions * 1e6 * share) as u64;
    let end = Instant::now() + Duration::from_secs(options.seconds);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| calls(call, told));
        }
        let result = flips(way, at, call, told, most, end);
        told.stop.store(true, Ordering::Relaxed);
        result
    })
}

fn calls(call: extern "C" fn(u64) -> u64, told: &Told) {
    let mut random = 0_u64;
    let (mut off, mut on, mut wrong) = (0, 0, 0);
    while !told.stop.load(Ordering::Relaxed) {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let n = random >> 1;
        let added = call(n).wrapping_sub(n);
        off += u64::from(added == ADDS.0);
        on += u64::from(added == ADDS.1);
        wrong += u64::from(added != ADDS.0 && added != ADDS.1);
    }
    told.off.fetch_add(off, Ordering::Relaxed);
    told.on.fetch_add(on, Ordering::Relaxed);
    told.wrong.fetch_add(wrong, Ordering::Relaxed);
}

/// Flips of one descriptor of `/proc/self/mem`: the product opens one for each change.
const TOGETHER: u64 = 64;

fn flips(
    way: Way,
    at: *mut u8,
    call: extern "C" fn(u64) -> u64,
    told: &Told,
    most: u64,
    end: Instant,
) -> Result<()> {
    let mem = std::fs::OpenOptions::new().write(true).open("/proc/self/mem")?;
    let mut done = 0;
    while done < most && Instant::now() < end {
        let mut writer = Writer::new();
        for _ in 0..TOGETHER {
            let on = done % 2 == 0;
            done += 1;
            match way {
                // SAFETY: a byte of a page that is writable; both values are whole instructions.
                Way::Direct => unsafe { at.write_volatile(if on { ON[0] } else { OFF[0] }) },
                Way::Mem => {
                    // SAFETY: a site in memory that stays.
                    let change = unsafe { Change::new(at, on) };
                    writer.apply(&mut [change])?;
                    patch::sync();
                }
                Way::FiveStores => five_stores(at, on),
                Way::Unaligned => eight_bytes(at, on),
                Way::MemFive => mem.write_all_at(if on { &ON } else { &NOP }, at.addr() as u64)?,
            }
            // The thread that wrote sees it at once.
            let added = call(done).wrapping_sub(done);
            let right = added == if on { ADDS.1 } else { ADDS.0 };
            told.wrong.fetch_add(u64::from(!right), Ordering::Relaxed);
        }
        told.flips.store(done, Ordering::Relaxed);
    }
    Ok(())
}

/// Long enough apart for another thread to come between.
fn five_stores(at: *mut u8, on: bool) {
    for (n, byte) in if on { ON } else { NOP }.into_iter().enumerate() {
        // SAFETY: a byte of the site, in a page that is writable. What others make of it is the point.
        unsafe { at.wrapping_add(n).write_volatile(byte) };
        std::thread::yield_now();
    }
}

fn eight_bytes(at: *mut u8, on: bool) {
    let at = at.cast::<u64>();
    // SAFETY: eight bytes of the function.
    let mut bytes = unsafe { at.read_unaligned() }.to_le_bytes();
    bytes[..5].copy_from_slice(if on { &ON } else { &NOP });
    let word = u64::from_le_bytes(bytes);
    // SAFETY: eight bytes of the function, in a page that is writable; one store, across a line.
    unsafe {
        std::arch::asm!("mov [{at}], {word}", at = in(reg) at, word = in(reg) word, options(nostack));
    }
}
