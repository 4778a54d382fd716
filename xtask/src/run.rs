//! Runs steps one after the other and says at the end how many passed.

use crate::steps::{STEPS, Step};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// How to run.
pub(crate) struct Options {
    /// Stop at the first failure.
    pub(crate) fail_fast: bool,
    /// An absent package is a failure.
    pub(crate) require_tools: bool,
}

/// What a step gets to work with.
pub(crate) struct Workspace {
    root: PathBuf,
    require_tools: bool,
}

impl Workspace {
    /// A command that runs in the workspace root with the environment every test expects.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        if self.require_tools {
            command.env("OWLET_REQUIRE_TOOLS", "1");
        }
        command
    }

    /// `cargo` with the given arguments, as [`command`](Self::command).
    pub(crate) fn cargo(&self, args: &str) -> Command {
        let mut command = self.command(env!("CARGO"));
        command.args(args.split_whitespace());
        command
    }

    /// Whether the package `name` is installed; a step that needs it is skipped without, and says so.
    pub(crate) fn tool(&self, name: &str) -> Result<bool> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if std::env::split_paths(&path).any(|dir| dir.join(name).is_file()) {
            return Ok(true);
        }
        if self.require_tools {
            bail!("{name} is missing\nhint: apt-get install {name}");
        }
        println!("    skipped: {name} is not installed");
        Ok(false)
    }

    /// A path of the workspace.
    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// A target folder of its own for builds with other flags.
    pub(crate) fn target(&self, name: &str) -> PathBuf {
        self.root.join("target").join(name)
    }

    /// `cargo` that compiles the workspace's own crates, and no dependency, with one more
    /// `--cfg`.
    ///
    /// A flag for all crates would rebuild every dependency for each mutant. A workspace wrapper
    /// touches only our own; its path names the flag, so that cargo keeps the builds apart.
    pub(crate) fn cargo_with_cfg(&self, cfg: &str, args: &str) -> Result<Command> {
        use std::os::unix::fs::PermissionsExt;
        let target = self.target("cfg");
        std::fs::create_dir_all(&target).with_context(|| format!("create {}", target.display()))?;
        let name: String =
            cfg.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let wrapper = target.join(format!("rustc-{name}.sh"));
        let script = format!("#!/bin/sh\nrustc=$1\nshift\nexec \"$rustc\" \"$@\" --cfg '{cfg}'\n");
        if std::fs::read_to_string(&wrapper).ok().as_deref() != Some(&script) {
            std::fs::write(&wrapper, script)
                .with_context(|| format!("write {}", wrapper.display()))?;
            std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755))
                .with_context(|| format!("make {} executable", wrapper.display()))?;
        }
        let mut command = self.cargo(args);
        command.env("RUSTC_WORKSPACE_WRAPPER", wrapper).env("CARGO_TARGET_DIR", target);
        Ok(command)
    }
}

/// Runs `command`; an exit status other than zero is an error that shows the command.
pub(crate) fn pass(mut command: Command) -> Result<()> {
    println!("    $ {}", show(&command));
    let status = command.status().with_context(|| format!("start {}", show(&command)))?;
    if !status.success() {
        bail!("{status}: {}", show(&command));
    }
    Ok(())
}

/// Runs `command`, which must fail with its exit status 1 or 101: the check that was asked to find
/// a planted fault found it. Any other end (success, a signal, a time-out) is an error.
pub(crate) fn must_fail(
    mut command: impl std::borrow::BorrowMut<Command>,
    what: &str,
) -> Result<()> {
    let command = command.borrow_mut();
    println!("    $ {}   (must fail: {what})", show(command));
    let output = command.output().with_context(|| format!("start {}", show(command)))?;
    match output.status.code() {
        Some(1 | 100 | 101) => Ok(()),
        _ => bail!(
            "{what} was not caught ({}): {}\n{}{}",
            output.status,
            show(command),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

fn show(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    if let Some(name) = Path::new(&text).file_name() {
        text = name.to_string_lossy().into_owned();
    }
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}

/// Runs the steps named in `names`, or all.
pub(crate) fn test(names: &[String], options: &Options) -> Result<ExitCode> {
    let steps = select(names)?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("workspace root")?;
    let context = Workspace { root: root.to_owned(), require_tools: options.require_tools };
    let mut failed = Vec::new();
    let mut passed = 0;
    for step in &steps {
        println!("==> {}: {}", step.name, step.about);
        let start = Instant::now();
        match (step.run)(&context) {
            Ok(()) => {
                passed += 1;
                println!("<== {}: passed in {:.1} s", step.name, start.elapsed().as_secs_f32());
            }
            Err(error) => {
                println!("<== {}: FAILED: {error:#}", step.name);
                failed.push(step.name);
                if options.fail_fast {
                    break;
                }
            }
        }
    }
    if !failed.is_empty() {
        println!("failed steps: {}", failed.join(", "));
    }
    println!("steps: {passed} passed, {} failed", failed.len());
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn select(names: &[String]) -> Result<Vec<&'static Step>> {
    if names.is_empty() {
        return Ok(STEPS.iter().collect());
    }
    names
        .iter()
        .map(|name| {
            STEPS
                .iter()
                .find(|step| step.name == name)
                .with_context(|| format!("no step {name:?}\nhint: `cargo xtask steps` lists them"))
        })
        .collect()
}
