//! What one event costs the thread that emits it: floor and product in one run, interleaved.
//!
//! `cargo run --release -p owlet-ring --example push_cost [-- EVENTS [ROUNDS]]`
//!
//! The floor is a read of the time stamp counter and a copy of the record into a buffer in the
//! thread's cache. Figures are nanoseconds of CPU time per event, median of the rounds.

use owlet_ring::{Clock, Reader, RingReader, Segment, SegmentOptions, Writer};
use owlet_sys::clock::{rdtsc, thread_cpu_ns};
use std::hint::black_box;
use std::sync::Arc;

type Parts<'a> = &'a [&'a [u8]];

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|arg| arg.parse::<usize>().ok());
    let (events, rounds) = (args.next().unwrap_or(1_000_000), args.next().unwrap_or(9));
    let long = [7_u8; 512];
    let cases: [(&str, Parts<'_>); 7] = [
        ("8 bytes", &[&long[..8]]),
        ("24 bytes", &[&long[..24]]),
        ("36 bytes", &[&long[..36]]),
        ("128 bytes", &[&long[..128]]),
        ("512 bytes", &[&long[..512]]),
        ("8 + 20 bytes", &[&long[..8], &long[..20]]),
        ("8 + 200 bytes", &[&long[..8], &long[..200]]),
    ];
    println!("bench=push_cost events={events} rounds={rounds} cpus={}", owlet_percpu::cpus());
    println!("backend={} ({})", owlet_percpu::backend_why(), std::env::consts::ARCH);
    for clock in [Clock::Tsc, Clock::Monotonic] {
        let mut bench = Bench::new(clock);
        for (name, parts) in cases {
            let (mut floor, mut product) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                floor.push(bench.floor(events, parts));
                product.push(bench.product(events, parts));
            }
            let (floor, product) = (median(&mut floor), median(&mut product));
            println!("clock={clock:?} case=\"{name}\" floor_ns={floor:.1} push_ns={product:.1}");
        }
        println!("clock={clock:?} hash={:x} lost={}", bench.hash, bench.lost);
    }
}

struct Bench {
    writer: Writer,
    readers: Vec<RingReader>,
    out: Vec<u8>,
    hash: u64,
    lost: u64,
}

impl Bench {
    fn new(clock: Clock) -> Self {
        let cpus = owlet_percpu::cpus();
        let options = SegmentOptions { cpus, clock, ..Default::default() };
        let segment = Arc::new(Segment::create(&options).expect("a segment"));
        let reader = Reader::new(Arc::clone(&segment));
        let readers = (0..reader.rings()).filter_map(|index| reader.ring(index)).collect();
        let writer = Writer::new(segment).expect("a writer");
        Self { writer, readers, out: Vec::new(), hash: 0, lost: 0 }
    }

    fn floor(&mut self, events: usize, parts: Parts<'_>) -> f64 {
        let mut buffer = [0_u8; 1024];
        let before = thread_cpu_ns();
        for _ in 0..events {
            let mut at = 24;
            buffer[..8].copy_from_slice(&rdtsc().to_le_bytes());
            buffer[8..24].copy_from_slice(black_box(&[1; 16]));
            for part in black_box(parts) {
                buffer[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            black_box(&mut buffer);
        }
        (thread_cpu_ns() - before) as f64 / events as f64
    }

    /// Pushes in runs that fit the ring and drains outside the measured time.
    fn product(&mut self, events: usize, parts: Parts<'_>) -> f64 {
        let (pid, tid) = (owlet_sys::process::getpid(), owlet_sys::process::gettid());
        let record = 24 + parts.iter().map(|part| part.len()).sum::<usize>().next_multiple_of(8);
        let run = (self.writer.segment().ring_bytes() / 2 / record).max(1);
        let (mut spent, mut done) = (0, 0);
        while done < events {
            let before = thread_cpu_ns();
            for _ in 0..run {
                let _ = black_box(self.writer.push(1, pid, tid, black_box(parts)));
            }
            spent += thread_cpu_ns() - before;
            done += run;
            for ring in &mut self.readers {
                self.out.clear();
                let drained = ring.drain(&mut self.out);
                self.hash = self.hash.rotate_left(5) ^ drained.events ^ drained.bytes as u64;
                self.lost = self.lost.max(drained.lost.iter().sum());
            }
        }
        spent as f64 / done as f64
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
