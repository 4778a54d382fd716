//! An image: programs and the maps they share, as values and as bytes.
//!
//! An image is what travels: the command verifies an object and sends the image to the process that
//! runs it. Its binary form is little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `OWLEBPF` and 0 |
//! | 4 | [`FORMAT`] |
//! | 4 | [`PLATFORM`] |
//! | 4 | length of what follows the checksum |
//! | 4 | CRC-32 (IEEE) of that |
//! | 2, 2 | number of maps, of programs |
//! | per map | kind (1), 0 (1), length of name (2), key size (4), value size (4), entries (4), length of data (4), name, data |
//! | per program | kind (1), 0 (1), length of name (2), length of pattern (2), number of slots (4), name, pattern, slots |
//!
//! The checksum finds damage, not malice: an image is to be trusted as far as the way it came.

use crate::decode::{self, MAX_SLOTS};
use crate::error::{Error, Result};

/// Version of the binary form.
pub const FORMAT: u32 = 1;
/// Version of what programs see: context, helpers, maps. An image is for one version.
pub const PLATFORM: u32 = 2;
/// Most maps of an image.
pub const MAX_MAPS: usize = 64;
/// Most programs of an image.
pub const MAX_PROGRAMS: usize = 64;
/// Most bytes of a key.
pub const MAX_KEY: u32 = 256;
/// Most bytes of a value.
pub const MAX_VALUE: u32 = 1 << 20;
/// Most entries of a map.
pub const MAX_ENTRIES: u32 = 1 << 24;

const MAGIC: &[u8; 8] = b"OWLEBPF\0";

/// Kind of a map. Numbers are the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MapKind {
    /// Keys to values, preallocated.
    Hash = 1,
    /// Values by number, all there from the start.
    Array = 2,
    /// An array for each CPU.
    PerCpuArray = 6,
    /// Records from programs to the host.
    RingBuf = 27,
}

impl MapKind {
    /// The kind of a kernel's number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::Hash, Self::Array, Self::PerCpuArray, Self::RingBuf]
            .into_iter()
            .find(|kind| *kind as u32 == number)
    }
}

/// Definition of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapDef {
    /// Its name in the object.
    pub name: String,
    /// Its kind.
    pub kind: MapKind,
    /// Bytes of a key: 4 for arrays, 0 for ring buffers, 1 to [`MAX_KEY`] for hashes.
    pub key_size: u32,
    /// Bytes of a value; 0 for ring buffers.
    pub value_size: u32,
    /// Number of entries; for ring buffers bytes, a power of two, at least 4096.
    pub max_entries: u32,
    /// What the first value of an array begins with (globals); the rest is 0.
    pub data: Vec<u8>,
}

impl MapDef {
    /// An array of `entries` values.
    #[must_use]
    pub fn array(name: &str, value_size: u32, entries: u32) -> Self {
        Self::new(name, MapKind::Array, 4, value_size, entries)
    }

    /// An array of `entries` values for each CPU.
    #[must_use]
    pub fn per_cpu_array(name: &str, value_size: u32, entries: u32) -> Self {
        Self::new(name, MapKind::PerCpuArray, 4, value_size, entries)
    }

    /// A hash of at most `entries` keys.
    #[must_use]
    pub fn hash(name: &str, key_size: u32, value_size: u32, entries: u32) -> Self {
        Self::new(name, MapKind::Hash, key_size, value_size, entries)
    }

    /// A ring buffer of `bytes`, a power of two.
    #[must_use]
    pub fn ring(name: &str, bytes: u32) -> Self {
        Self::new(name, MapKind::RingBuf, 0, 0, bytes)
    }

    fn new(name: &str, kind: MapKind, key_size: u32, value_size: u32, max_entries: u32) -> Self {
        let (name, data) = (name.to_owned(), Vec::new());
        Self { name, kind, key_size, value_size, max_entries, data }
    }

    /// Checks the definition's numbers.
    pub(crate) fn check(&self) -> Result<()> {
        let fail = |what: &str| Err(Error::map(&self.name, what));
        if self.max_entries == 0 || self.max_entries > MAX_ENTRIES {
            return fail("the number of entries is 0 or too large");
        }
        match self.kind {
            MapKind::RingBuf => {
                if (self.key_size, self.value_size) != (0, 0) {
                    return fail("a ring buffer has neither keys nor values");
                }
                if !self.max_entries.is_power_of_two() || self.max_entries < 4096 {
                    return fail("a ring buffer's size is a power of two, at least 4096");
                }
            }
            MapKind::Array | MapKind::PerCpuArray if self.key_size != 4 => {
                return fail("the key of an array has 4 bytes");
            }
            MapKind::Hash if self.key_size == 0 || self.key_size > MAX_KEY => {
                return fail("the key size is 0 or too large");
            }
            _ => {}
        }
        if self.kind != MapKind::RingBuf && (self.value_size == 0 || self.value_size > MAX_VALUE) {
            return fail("the value size is 0 or too large");
        }
        let fits = u32::try_from(self.data.len()).is_ok_and(|len| len <= self.value_size);
        if !self.data.is_empty() && (self.kind != MapKind::Array || !fits) {
            return fail("only the first value of an array has data");
        }
        Ok(())
    }
}

/// When a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ProgramKind {
    /// Before the function's body.
    Entry = 0,
    /// After it; the context has the return value.
    Exit = 1,
    /// Both, as a pair.
    Session = 2,
}

impl ProgramKind {
    const ALL: [Self; 3] = [Self::Entry, Self::Exit, Self::Session];
}

/// A program: instructions and how they are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramDef {
    /// Name of its function.
    pub name: String,
    /// When it runs.
    pub kind: ProgramKind,
    /// Which functions it is for, if the object says so (`SEC("entry/PATTERN")`), or empty.
    pub pattern: String,
    /// Instructions, 8 bytes a slot; a 64-bit immediate with source 1 or 2 names maps by their number in
    /// the image.
    pub code: Vec<u8>,
}

/// Programs and the maps they share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Maps; instructions name them by position.
    pub maps: Vec<MapDef>,
    /// Programs.
    pub programs: Vec<ProgramDef>,
}

impl Image {
    /// Checks the shape of maps and programs. What it passes can be interpreted safely; whether it is fit
    /// to be compiled is the verifier's to say.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<()> {
        if self.maps.len() > MAX_MAPS || self.programs.len() > MAX_PROGRAMS {
            return Err(Error::Image("too many maps or programs"));
        }
        let long = |text: &String| u16::try_from(text.len()).is_err();
        if self.maps.iter().any(|map| long(&map.name))
            || self.programs.iter().any(|program| long(&program.name) || long(&program.pattern))
        {
            return Err(Error::Image("a name is too long"));
        }
        for map in &self.maps {
            map.check()?;
        }
        for program in &self.programs {
            decode::decode(&program.code, &self.maps)?;
        }
        Ok(())
    }

    /// Its binary form.
    ///
    /// # Errors
    /// As [`Image::check`].
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.check()?;
        let mut body = Vec::new();
        put_len(&mut body, self.maps.len(), 2);
        put_len(&mut body, self.programs.len(), 2);
        for map in &self.maps {
            body.extend([map.kind as u8, 0]);
            put_len(&mut body, map.name.len(), 2);
            for number in [map.key_size, map.value_size, map.max_entries] {
                body.extend(number.to_le_bytes());
            }
            put_len(&mut body, map.data.len(), 4);
            body.extend(map.name.as_bytes());
            body.extend(&map.data);
        }
        for program in &self.programs {
            body.extend([program.kind as u8, 0]);
            put_len(&mut body, program.name.len(), 2);
            put_len(&mut body, program.pattern.len(), 2);
            put_len(&mut body, program.code.len() / 8, 4);
            body.extend(program.name.as_bytes());
            body.extend(program.pattern.as_bytes());
            body.extend(&program.code);
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend(PLATFORM.to_le_bytes());
        put_len(&mut bytes, body.len(), 4);
        bytes.extend(crc32(&body).to_le_bytes());
        bytes.extend(body);
        Ok(bytes)
    }

    /// The image of a binary form.
    ///
    /// # Errors
    /// [`Error::Version`] for another format or platform; otherwise what is wrong with the bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut header = Reader(bytes);
        if header.take(8)? != MAGIC {
            return Err(Error::Image("no magic number"));
        }
        for expected in [FORMAT, PLATFORM] {
            let found = header.u32()?;
            if found != expected {
                return Err(Error::Version { found, expected });
            }
        }
        let (len, sum) = (header.u32()?, header.u32()?);
        let body = header.0;
        if u32::try_from(body.len()) != Ok(len) {
            return Err(Error::Image("the length is wrong"));
        }
        if crc32(body) != sum {
            return Err(Error::Image("the checksum is wrong"));
        }
        let mut body = Reader(body);
        let (maps, programs) = (body.u16()?, body.u16()?);
        if usize::from(maps) > MAX_MAPS || usize::from(programs) > MAX_PROGRAMS {
            return Err(Error::Image("too many maps or programs"));
        }
        let maps = (0..maps).map(|_| body.map()).collect::<Result<_>>()?;
        let programs = (0..programs).map(|_| body.program()).collect::<Result<_>>()?;
        if !body.0.is_empty() {
            return Err(Error::Image("bytes behind its end"));
        }
        let image = Self { maps, programs };
        image.check()?;
        Ok(image)
    }
}

/// Appends a length that [`Image::check`] has found to fit.
fn put_len(out: &mut Vec<u8>, len: usize, bytes: usize) {
    out.extend(len.to_le_bytes().into_iter().take(bytes));
}

/// Reads from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Error::Image("it ends early"))?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Error::Image("it ends early"))?;
        self.0 = rest;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn len32(&mut self) -> Result<usize> {
        usize::try_from(self.u32()?).map_err(|_| Error::Image("a length is too large"))
    }

    fn text(&mut self, len: u16) -> Result<String> {
        let bytes = self.take(len.into())?;
        let text = core::str::from_utf8(bytes);
        Ok(text.map_err(|_| Error::Image("a name is not UTF-8"))?.to_owned())
    }

    fn map(&mut self) -> Result<MapDef> {
        let [kind, zero] = self.array()?;
        let name = self.u16()?;
        let kind = MapKind::from_number(kind.into()).ok_or(Error::Image("unknown kind of map"))?;
        if zero != 0 {
            return Err(Error::Image("unknown flags of a map"));
        }
        let (key_size, value_size, max_entries) = (self.u32()?, self.u32()?, self.u32()?);
        let data = self.len32()?;
        let name = self.text(name)?;
        let data = self.take(data)?.to_vec();
        Ok(MapDef { name, kind, key_size, value_size, max_entries, data })
    }

    fn program(&mut self) -> Result<ProgramDef> {
        let [kind, zero] = self.array()?;
        let kind = ProgramKind::ALL.into_iter().find(|known| *known as u8 == kind);
        let kind = kind.filter(|_| zero == 0).ok_or(Error::Image("unknown kind of program"))?;
        let (name, pattern) = (self.u16()?, self.u16()?);
        let slots = self.len32()?;
        if slots > MAX_SLOTS {
            return Err(Error::Image("a program is too long"));
        }
        let (name, pattern) = (self.text(name)?, self.text(pattern)?);
        Ok(ProgramDef { name, kind, pattern, code: self.take(slots * 8)?.to_vec() })
    }
}

/// CRC-32 as of IEEE 802.3 (polynomial 0xEDB88320, reflected).
fn crc32(bytes: &[u8]) -> u32 {
    let table = const {
        let mut table = [0_u32; 256];
        let mut i = 0;
        while i < table.len() {
            let mut word = i as u32;
            let mut bit = 0;
            while bit < 8 {
                word = if word & 1 != 0 { word >> 1 ^ 0xedb8_8320 } else { word >> 1 };
                bit += 1;
            }
            #[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
            {
                table[i] = word;
            }
            i += 1;
        }
        table
    };
    let step = |sum: u32, byte: &u8| {
        let low = (sum ^ u32::from(*byte)) & 0xff;
        sum >> 8 ^ usize::try_from(low).ok().and_then(|i| table.get(i)).copied().unwrap_or(0)
    };
    !bytes.iter().fold(!0, step)
}
