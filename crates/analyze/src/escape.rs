//! Text of the target made safe to print.
//!
//! A traced program may call an event, a thread or a string anything. Printed raw, that text could
//! move the cursor, set the window's title, or reorder the line on the reader's screen. Escaped text
//! holds no control character, no bidirectional control, no invisible separator and is valid UTF-8:
//!
//! | input | output |
//! |---|---|
//! | `\n` `\r` `\t` | `\n` `\r` `\t`, spelled out |
//! | other C0 controls, DEL | `\xNN` |
//! | a byte that is not UTF-8 | `\xNN` |
//! | C1 controls, bidirectional controls, line separators, invisible formats | `\u{NNNN}` |
//! | backslash | `\\` |
//! | `"`, only inside quotes | `\"` |
//!
//! Within quotes the escaped form determines the bytes. Cost: one scan and one copy for text that
//! needs nothing.

use std::fmt::Write;

/// Whether a character is unfit for a terminal: it moves, hides or reorders what is around it.
#[must_use]
pub const fn is_unsafe(c: char) -> bool {
    matches!(c,
        '\0'..='\x1f' | '\x7f'..='\u{9f}'
        // Soft hyphen, Arabic letter mark, Mongolian vowel separator.
        | '\u{ad}' | '\u{61c}' | '\u{180e}'
        // Zero-width characters, LRM, RLM; line and paragraph separators, embeddings, overrides;
        // word joiner, invisible operators, isolates, deprecated formats.
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        // Musical and tag formats, which are invisible.
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}')
}

/// Appends `bytes` escaped, without quotes.
pub fn push(out: &mut String, bytes: &[u8]) {
    push_with(out, bytes, false);
}

/// Appends `bytes` escaped, in double quotes.
pub fn push_quoted(out: &mut String, bytes: &[u8]) {
    out.push('"');
    push_with(out, bytes, true);
    out.push('"');
}

/// `bytes` escaped, without quotes.
#[must_use]
pub fn escaped(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    push(&mut out, bytes);
    out
}

fn push_with(out: &mut String, bytes: &[u8], quoted: bool) {
    let plain = |b: &u8| matches!(b, 0x20..0x7f) && *b != b'\\' && !(quoted && *b == b'"');
    if bytes.iter().all(plain)
        && let Ok(text) = str::from_utf8(bytes)
    {
        out.push_str(text);
        return;
    }
    push_slow(out, bytes, quoted);
}

#[cold]
fn push_slow(out: &mut String, bytes: &[u8], quoted: bool) {
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            push_char(out, c, quoted);
        }
        for byte in chunk.invalid() {
            push_hex(out, *byte);
        }
    }
}

fn push_char(out: &mut String, c: char, quoted: bool) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\\' => out.push_str("\\\\"),
        '"' if quoted => out.push_str("\\\""),
        '\0'..='\x1f' | '\x7f' => push_hex(out, c as u8),
        c if is_unsafe(c) => {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        }
        c => out.push(c),
    }
}

/// Appends `\xNN`.
pub(crate) fn push_hex(out: &mut String, byte: u8) {
    out.push_str("\\x");
    push_hex_digits(out, byte);
}

/// Appends two hexadecimal digits.
pub(crate) fn push_hex_digits(out: &mut String, byte: u8) {
    for digit in [byte >> 4, byte & 15] {
        out.push(char::from_digit(digit.into(), 16).unwrap_or('?'));
    }
}
