//! May we? Asked before anything is looked at, so that the answer is a sentence and no errno.

use crate::error::{Error, ErrorKind, Result};

const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_PERFMON: u64 = 1 << 38;
const CAP_BPF: u64 = 1 << 39;

/// Checks that this process may load programs and put them on probes: root, or `CAP_BPF` and
/// `CAP_PERFMON`.
///
/// # Errors
/// [`ErrorKind::Permission`], with what is missing.
pub fn check() -> Result<()> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(Error::new(ErrorKind::Unsupported, "kernel probes are known for x86-64 only"));
    }
    // Whoever has no /proc is told by the kernel itself.
    match std::fs::read_to_string("/proc/self/status").ok().as_deref().and_then(effective) {
        Some(held) => judge(held),
        None => Ok(()),
    }
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn judge(held: u64) -> Result<()> {
    let has = |capability: u64| held & (capability | CAP_SYS_ADMIN) != 0;
    let missing: Vec<_> = [("CAP_BPF", CAP_BPF), ("CAP_PERFMON", CAP_PERFMON)]
        .into_iter()
        .filter(|(_, capability)| !has(*capability))
        .map(|(name, _)| name)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("the kernel lets nobody probe without {}", missing.join(" and "));
    Err(Error::new(ErrorKind::Permission, message).hint(
        "run it as root, or with those capabilities: capsh, systemd-run -p AmbientCapabilities=, setpriv",
    ))
}

#[cfg(test)]
mod tests {
    use super::{CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN, effective, judge};

    #[test]
    fn what_is_missing_is_named() {
        assert!(judge(CAP_SYS_ADMIN).is_ok() && judge(CAP_BPF | CAP_PERFMON).is_ok());
        let missing = |held| judge(held).unwrap_err().message;
        assert!(missing(CAP_BPF).ends_with("without CAP_PERFMON"));
        assert!(missing(0).ends_with("without CAP_BPF and CAP_PERFMON"));
    }

    #[test]
    fn capabilities_are_read_from_the_status() {
        assert_eq!(effective("Name:\tx\nCapEff:\t000001ffffffffff\n"), Some(0x1ff_ffff_ffff));
        assert_eq!(effective("CapEff:\tzz\n"), None);
        assert_eq!(effective(""), None);
    }
}
