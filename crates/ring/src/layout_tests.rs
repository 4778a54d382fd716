use super::*;

fn geometry() -> Geometry {
    Geometry {
        cpus: 3,
        ring_bytes: 8192,
        config_len: 5,
        log_len: 4096,
        clock: Clock::Tsc,
        deferral_us: 2000,
    }
}

#[test]
fn round_trip() {
    for clock in [Clock::Tsc, Clock::Monotonic] {
        let geometry = Geometry { clock, ..geometry() };
        let bytes = geometry.encode();
        assert_eq!(Geometry::decode(&bytes, geometry.total() as u64), Ok(geometry));
    }
}

/// The bytes of version 1 never change: whoever changes them must change the version.
#[test]
fn c2_version_1_is_these_bytes() {
    let g = geometry();
    assert_eq!(VERSION, 1);
    assert_eq!((g.config_off(), g.log_off(), g.data_off(), g.total()), (8192, 12288, 16384, 73728));
    let mut want = Vec::new();
    want.extend(b"OWLETSEG\x01\0\0\0\0\x10\0\0");
    for word in [73728_u64, 3, 8192, 8192, 5, 12288, 4096, 16384] {
        want.extend(word.to_le_bytes());
    }
    want.extend([0xd0, 7, 0, 0, 24, 0, 0, 0]);
    assert_eq!(g.encode()[..88], want);
}

#[test]
fn c2_other_version_is_named() {
    let g = geometry();
    let mut bytes = g.encode();
    bytes[8] = 2;
    assert_eq!(Geometry::decode(&bytes, g.total() as u64), Err(Refused::Version(2)));
}

/// No single changed byte gets through, whatever the byte and the value.
#[test]
fn x5_every_changed_byte_is_refused() {
    let g = geometry();
    for at in 0..CONSTANTS_LEN {
        for flip in [1, 0x80, 0xff] {
            let mut bytes = g.encode();
            bytes[at] ^= flip;
            assert!(Geometry::decode(&bytes, g.total() as u64).is_err(), "byte {at} ^ {flip:#x}");
        }
    }
}

#[test]
fn x5_wrong_length_is_refused() {
    let g = geometry();
    for len in [0, 1, g.total() as u64 - 1, g.total() as u64 + 1, u64::MAX] {
        assert!(Geometry::decode(&g.encode(), len).is_err());
    }
}

#[test]
fn out_of_range_numbers_are_refused() {
    let bad = |change: fn(&mut Geometry)| {
        let mut g = geometry();
        change(&mut g);
        assert!(g.check().is_err(), "{g:?}");
    };
    bad(|g| g.cpus = 0);
    bad(|g| g.cpus = MAX_CPUS + 1);
    bad(|g| g.ring_bytes = 2048);
    bad(|g| g.ring_bytes = 12288);
    bad(|g| g.ring_bytes = MAX_RING * 2);
    bad(|g| g.log_len = 100);
    bad(|g| g.log_len = 0);
    bad(|g| g.config_len = MAX_SIDE + 1);
}
