//! Chooses how the sites of traced functions are compiled. See `src/site.rs`.

use std::env::var;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(owlet_site, values(\"toggle\", \"flag\"))");
    println!("cargo::rustc-check-cfg=cfg(owlet_table)");
    let is = |key: &str, value: &str| var(key).is_ok_and(|found| found == value);
    let miri = var("CARGO_CFG_MIRI").is_ok();
    // The assembly of the table and of the toggle is written for this one platform.
    let native = is("CARGO_CFG_TARGET_ARCH", "x86_64")
        && is("CARGO_CFG_TARGET_OS", "linux")
        && is("CARGO_CFG_TARGET_POINTER_WIDTH", "64")
        && !miri;
    if native {
        println!("cargo::rustc-cfg=owlet_table");
    }
    let toggle = native && var("CARGO_FEATURE_FLAG_SITES").is_err();
    println!("cargo::rustc-cfg=owlet_site=\"{}\"", if toggle { "toggle" } else { "flag" });
}
