//! One byte of code can be changed while threads run it; five cannot.
#![cfg(target_arch = "x86_64")]

use std::process::{Command, Output};

fn flips(args: &[&str]) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_owlet-torture"));
    let output = command.arg("flips").args(args).output().expect("runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

/// Every result is right, across a line and across a page, by the product's writer and by a bare store.
#[test]
fn one_byte_flips_are_never_seen_half() {
    let (output, text) = flips(&["--millions", "0.5", "--offsets", "63,4095", "--threads", "2"]);
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches(": PASS offset").count(), 4, "{text}");
}

/// The control: torn code is seen, and ends the process or gives a wrong result. (At 61 the bytes on either side
/// of the line's end would not differ together: nothing could be torn but between the stores.)
#[test]
fn torn_writes_crash() {
    for (way, offset) in [("five-stores", "61"), ("mem-five", "63"), ("mem-five", "4095")] {
        let args = ["--ways", way, "--offsets", offset, "--threads", "2", "--millions", "20"];
        let (output, text) = flips(&args);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(&format!("flips {way}: FAIL")), "{text}");
        assert!(!text.contains("signal=0 ") && !text.ends_with("signal=0\n"), "{text}");
    }
}
