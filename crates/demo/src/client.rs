//! The load: each client asks at a steady rate, and connects anew every few hundred requests.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Requests of one connection.
const REQUESTS: u32 = 500;

/// Asks until the server is gone.
pub(crate) fn run(address: SocketAddr, number: u32, rate: u32) {
    let interval = Duration::from_secs(1) / rate.max(1);
    let mut random = u64::from(number) * 2 + 1;
    let mut next = Instant::now();
    while connection(address, interval, &mut random, &mut next).is_ok() {}
}

fn connection(
    address: SocketAddr,
    interval: Duration,
    random: &mut u64,
    next: &mut Instant,
) -> io::Result<()> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut input = BufReader::new(&stream);
    let mut reply = String::new();
    for _ in 0..REQUESTS {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        *next += interval;
        let _call = tracing::info_span!("call", port = address.port()).entered();
        (&stream).write_all(request(random).as_bytes())?;
        reply.clear();
        if input.read_line(&mut reply)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Six reads in ten, three writes, one deletion, over 256 keys.
fn request(random: &mut u64) -> String {
    // Knuth's multiplier; the upper bits are the random ones.
    *random =
        random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let (key, dice) = (*random >> 56, (*random >> 40) % 10);
    match dice {
        0..6 => format!("get user:{key}\n"),
        6..9 => format!("set user:{key} value-{}\n", *random >> 48),
        _ => format!("del user:{key}\n"),
    }
}
