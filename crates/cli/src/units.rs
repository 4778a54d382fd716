//! Durations and sizes on the command line and in messages.

use std::time::Duration;

/// `500ms`, `5s`, `2m`, `1.5h`. A number alone is refused: nobody remembers its unit.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    const HELP: &str = "give a number and a unit: us, ms, s, m or h, as in 5s or 500ms";
    let (number, unit) = split(text);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(HELP.into()),
    };
    let number: f64 = number.parse().map_err(|_| HELP.to_string())?;
    let duration = Duration::try_from_secs_f64(number * seconds).map_err(|_| HELP.to_string())?;
    if duration.is_zero() { Err("must be longer than nothing".into()) } else { Ok(duration) }
}

/// `4M`, `256K`, `1G`, `4MiB` or plain bytes; powers of 1,024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    const HELP: &str = "give a number of bytes, or one with K, M or G, as in 4M";
    let (number, unit) = split(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err(HELP.into()),
    };
    let number: u64 = number.parse().map_err(|_| HELP.to_string())?;
    number.checked_mul(1 << shift).filter(|&n| n > 0).ok_or_else(|| HELP.into())
}

/// Rings are this large at most.
const RING_MAX: u64 = 1 << 30;

/// The size of a ring: as [`parse_size`], up to 1G.
pub(crate) fn parse_ring_size(text: &str) -> Result<u64, String> {
    const LIMIT: &str = "rings are at most 1G a CPU, and each CPU has two";
    let digits = split(text).0;
    let endless = digits.len() > 19 && digits.bytes().all(|b| b.is_ascii_digit());
    match parse_size(text) {
        Ok(size) if size <= RING_MAX => Ok(size),
        Ok(_) => Err(LIMIT.into()),
        Err(_) if endless => Err(LIMIT.into()),
        Err(why) => Err(why),
    }
}

/// A size as `--size` takes it, four times as large as `bytes` if that can be.
pub(crate) fn larger_ring(bytes: u64) -> String {
    let bytes = bytes.next_power_of_two().max(4096).saturating_mul(4).min(RING_MAX);
    match bytes.trailing_zeros() {
        30.. => format!("{}G", bytes >> 30),
        20.. => format!("{}M", bytes >> 20),
        _ => format!("{}K", bytes >> 10),
    }
}

fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(end)
}

/// `512 B`, `3.1 MB`; powers of 1,000, as disks and file managers count.
pub(crate) fn size(bytes: u64) -> String {
    scaled(bytes as f64, "B")
}

/// `950`, `50.0 K`, `1.2 M`: a rate without its unit.
pub(crate) fn rate(per_second: f64) -> String {
    scaled(per_second, "").trim_end().to_string()
}

fn scaled(value: f64, unit: &str) -> String {
    let mut value = value;
    for prefix in ["", "K", "M", "G"] {
        if value < 999.95 {
            let digits = usize::from(!prefix.is_empty());
            return format!("{value:.digits$} {prefix}{unit}");
        }
        value /= 1000.0;
    }
    format!("{value:.1} T{unit}")
}

/// `250ns`, `4.1us`, `3.0ms`, `2.5s`.
pub(crate) fn latency(ns: u64) -> String {
    let ns = ns as f64;
    match ns {
        0.0..1e3 => format!("{ns:.0}ns"),
        1e3..1e6 => format!("{:.1}us", ns / 1e3),
        1e6..1e9 => format!("{:.1}ms", ns / 1e6),
        _ => format!("{:.1}s", ns / 1e9),
    }
}

/// `00:05`, `1:02:03`.
pub(crate) fn clock(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes:02}:{seconds:02}")
    }
}

/// `20260131-235959` in UTC, for file names.
pub(crate) fn timestamp() -> String {
    let seconds = std::time::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs());
    timestamp_of(seconds)
}

fn timestamp_of(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil from days, after Howard Hinnant; eras of 400 years from 0000-03-01.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_shifted + 2) / 5 + 1;
    let month = if month_shifted < 10 { month_shifted + 3 } else { month_shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

#[cfg(test)]
#[path = "units_tests.rs"]
mod tests;
