//! Length-prefixed postcard messages on a byte stream: u32 little-endian length, then the message.
//!
//! The client's first frame is preceded by [`MAGIC`], so that a stranger's protocol is recognised
//! before a length is believed. A length is never trusted with memory: the buffer grows with the
//! bytes that really arrive, up to the limit.

use crate::control::{FRAME_MAX, MAGIC};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::io::{self, Read, Write};

/// Why a frame could not be read.
#[derive(Debug)]
pub enum FrameError {
    /// The stream failed or timed out.
    Io(io::Error),
    /// The peer closed the stream before the first byte of a frame.
    Closed,
    /// The peer closed the stream inside a frame.
    Truncated,
    /// The first four bytes are not [`MAGIC`].
    Magic([u8; 4]),
    /// The length is over the limit.
    TooLong {
        /// What the frame says.
        len: u32,
        /// What is allowed.
        max: u32,
    },
    /// The bytes are not the message expected.
    Malformed,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "connection failed: {error}"),
            Self::Closed => f.write_str("the peer closed the connection"),
            Self::Truncated => f.write_str("the peer closed the connection inside a message"),
            Self::Magic(found) => {
                write!(f, "not an owlet peer: it began with \"{}\"", found.escape_ascii())
            }
            Self::TooLong { len, max } => {
                write!(f, "message of {len} bytes is over the limit of {max}")
            }
            Self::Malformed => f.write_str("message does not decode"),
        }
    }
}

impl std::error::Error for FrameError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The bytes of one frame, length included; `None` when the message is over [`FRAME_MAX`].
#[must_use]
pub fn to_vec<T: Serialize + ?Sized>(message: &T) -> Option<Vec<u8>> {
    let bytes = postcard::to_extend(message, vec![0; 4]).ok()?;
    let len = u32::try_from(bytes.len().checked_sub(4)?).ok().filter(|len| *len <= FRAME_MAX)?;
    let mut bytes = bytes;
    bytes.first_chunk_mut::<4>()?.copy_from_slice(&len.to_le_bytes());
    Some(bytes)
}

/// Writes one frame with a single `write_all`.
///
/// # Errors
/// Those of `out`; `InvalidInput` when the message is over [`FRAME_MAX`].
pub fn write<T: Serialize + ?Sized>(out: &mut impl Write, message: &T) -> io::Result<()> {
    let bytes = to_vec(message)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "message over the limit"))?;
    out.write_all(&bytes)?;
    out.flush()
}

/// Writes [`MAGIC`], which must precede the first frame of a connection.
///
/// # Errors
/// Those of `out`.
pub fn write_magic(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&MAGIC)
}

/// Reads and checks [`MAGIC`].
///
/// # Errors
/// [`FrameError::Magic`] for other bytes, [`FrameError::Closed`] for none.
pub fn read_magic(input: &mut impl Read) -> Result<(), FrameError> {
    let found = read_word(input)?;
    if found == MAGIC { Ok(()) } else { Err(FrameError::Magic(found)) }
}

/// Reads one frame of at most `max` bytes (see [`FRAME_MAX`]) and decodes it.
///
/// # Errors
/// See [`FrameError`]. After [`FrameError::TooLong`], [`FrameError::Truncated`] and
/// [`FrameError::Io`] the stream's position is lost: close it.
pub fn read<T: DeserializeOwned>(input: &mut impl Read, max: u32) -> Result<T, FrameError> {
    let len = u32::from_le_bytes(read_word(input)?);
    if len > max {
        return Err(FrameError::TooLong { len, max });
    }
    let mut body = Vec::new();
    let got = input.by_ref().take(u64::from(len)).read_to_end(&mut body)?;
    if got < len as usize {
        return Err(FrameError::Truncated);
    }
    match postcard::take_from_bytes::<T>(&body) {
        Ok((message, [])) => Ok(message),
        _ => Err(FrameError::Malformed),
    }
}

/// Four bytes; `Closed` when there is not one, `Truncated` when there are fewer.
fn read_word(input: &mut impl Read) -> Result<[u8; 4], FrameError> {
    let mut word = Vec::with_capacity(4);
    input.by_ref().take(4).read_to_end(&mut word)?;
    match word.first_chunk::<4>() {
        Some(word) => Ok(*word),
        None if word.is_empty() => Err(FrameError::Closed),
        None => Err(FrameError::Truncated),
    }
}
