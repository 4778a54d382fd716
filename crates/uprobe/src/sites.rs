//! From patterns to sites: where in which file the kernel is to put a probe.
//!
//! Several patterns may match one function: it is one site. Two probes of the same provider and name at
//! two places are two sites of one name.

use crate::elf::{Image, Probe};
use crate::error::{Error, ErrorKind, Result};
use crate::pattern::{Pattern, Wanted};
use crate::process::{ObjectFile, object_files};
use crate::usdt::Argument;
use owlet_wire::config::glob;
use std::collections::BTreeSet;

/// What a site is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Of {
    /// The entry of a function.
    Function,
    /// A USDT probe, with its arguments.
    Probe(Vec<Argument>),
}

/// A place to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// `OBJECT:FUNCTION`, or `PROVIDER:NAME` of a USDT probe.
    pub name: String,
    /// Which of [`Found::files`].
    pub file: usize,
    /// Where in the file.
    pub offset: u64,
    /// Where in the file the probe's semaphore is, or 0.
    pub semaphore: u64,
    /// What it is.
    pub of: Of,
}

/// Where to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In what this process runs; only it is probed.
    Process(u32),
    /// In files given by their paths; every process that runs them is probed.
    Everyone,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Files with a site.
    pub files: Vec<ObjectFile>,
    /// Sites, by file and offset.
    pub sites: Vec<Site>,
    /// What could not be used, and why; one line each.
    pub warnings: Vec<String>,
}

/// A file that a pattern may mean.
struct Candidate {
    file: ObjectFile,
    image: Option<Result<Image>>,
}

impl Candidate {
    /// Reads the file when it is first asked for.
    fn image(&mut self) -> &Result<Image> {
        let (open, shown) = (&self.file.open, &self.file.path);
        self.image.get_or_insert_with(|| Image::read(open, shown))
    }
}

/// Looks for all patterns; each must match something.
///
/// # Errors
/// When the process or a file cannot be read, or a pattern matches nothing: then the message names it,
/// and [`NoMatch::names`] what there is.
pub fn find(scope: Scope, patterns: &[Pattern]) -> std::result::Result<Found, NoMatch> {
    let mut candidates = candidates(scope, patterns)?;
    let mut sites = Vec::new();
    let mut warnings = Vec::new();
    for pattern in patterns {
        let before = sites.len();
        let mut failed = None;
        let mut meant = Vec::new();
        for (at, candidate) in candidates.iter_mut().enumerate() {
            let ObjectFile { path, names, program, .. } = &candidate.file;
            if !pattern.means(path, names, *program) {
                continue;
            }
            meant.push(at);
            let name = candidate.file.name().to_owned();
            match candidate.image() {
                Ok(image) => match_image(pattern, at, &name, image, &mut sites),
                Err(error) => failed = failed.or(Some(error.clone())),
            }
        }
        if sites.len() > before {
            warnings.extend(failed.map(|error| error.message));
            continue;
        }
        return Err(match failed {
            Some(error) => error.into(),
            None => no_match(pattern, &mut candidates, &meant),
        });
    }
    sites.sort_by(|a, b| (a.file, a.offset, &a.name).cmp(&(b.file, b.offset, &b.name)));
    // Two probes may stand at one place; a function has one name.
    sites.dedup();
    Ok(tidy(candidates, sites, warnings))
}

/// Keeps the files that have sites.
fn tidy(candidates: Vec<Candidate>, mut sites: Vec<Site>, mut warnings: Vec<String>) -> Found {
    let used: BTreeSet<usize> = sites.iter().map(|site| site.file).collect();
    for site in &mut sites {
        site.file = used.range(..site.file).count();
    }
    let mut files = Vec::new();
    for (at, candidate) in candidates.into_iter().enumerate() {
        if used.contains(&at) {
            if let Some(Ok(image)) = &candidate.image
                && image.broken > 0
            {
                let (path, n) = (&candidate.file.path, image.broken);
                warnings.push(format!("{path}: {n} of its USDT notes make no sense"));
            }
            files.push(candidate.file);
        }
    }
    Found { files, sites, warnings }
}

fn candidates(scope: Scope, patterns: &[Pattern]) -> Result<Vec<Candidate>> {
    let mut files = match scope {
        Scope::Process(pid) => object_files(pid)?,
        Scope::Everyone => {
            let mut files = Vec::new();
            for pattern in patterns {
                let Some(path) = pattern.path() else {
                    let what = format!("'{}' names no file by its path", pattern.text);
                    return Err(Error::new(ErrorKind::Pattern, what)
                        .hint("name a process with -p, or a file, as in '/usr/sbin/server:main'"));
                };
                files.push(ObjectFile::at(path));
            }
            files
        }
    };
    if let Scope::Process(pid) = scope {
        by_their_links(pid, patterns, &mut files);
    }
    let mut seen = BTreeSet::new();
    files.retain(|file| seen.insert(file.open.clone()));
    Ok(files.into_iter().map(|file| Candidate { file, image: None }).collect())
}

/// Paths that lead to a mapped file through links become that file's path.
fn by_their_links(pid: u32, patterns: &[Pattern], files: &mut [ObjectFile]) {
    use std::os::unix::fs::MetadataExt as _;
    let identity = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
    for path in patterns.iter().filter_map(Pattern::path) {
        let looked = [format!("/proc/{pid}/root{path}"), path.to_owned()];
        let wanted: Vec<_> =
            looked.iter().filter_map(|path| std::fs::metadata(path).ok().map(identity)).collect();
        for file in files.iter_mut() {
            let found = std::fs::metadata(&file.open).ok().map(identity);
            if found.is_some_and(|found| wanted.contains(&found)) {
                path.clone_into(&mut file.path);
            }
        }
    }
}

fn match_image(pattern: &Pattern, file: usize, name: &str, image: &Image, out: &mut Vec<Site>) {
    match &pattern.wanted {
        Wanted::Function(wanted) => {
            let matching = image
                .functions
                .iter()
                .filter(|function| function.names().any(|name| glob(wanted, name)));
            out.extend(matching.map(|function| Site {
                name: format!("{name}:{}", function.name),
                file,
                offset: function.offset,
                semaphore: 0,
                of: Of::Function,
            }));
        }
        Wanted::Probe { provider, name } => {
            let matching =
                |probe: &&Probe| glob(provider, &probe.provider) && glob(name, &probe.name);
            out.extend(image.probes.iter().filter(matching).map(|probe| Site {
                name: format!("{}:{}", probe.provider, probe.name),
                file,
                offset: probe.offset,
                semaphore: probe.semaphore,
                of: Of::Probe(probe.arguments.clone()),
            }));
        }
    }
}

/// A pattern matches nothing, or nothing can be looked for.
#[derive(Clone, Debug)]
pub struct NoMatch {
    /// What and why.
    pub error: Error,
    /// What there is instead, as a pattern would name it; empty when that is not known.
    pub names: Vec<String>,
    /// What was looked for, in the same terms.
    pub wanted: String,
}

impl From<Error> for NoMatch {
    fn from(error: Error) -> Self {
        Self { error, names: Vec::new(), wanted: String::new() }
    }
}

fn no_match(pattern: &Pattern, candidates: &mut [Candidate], meant: &[usize]) -> NoMatch {
    let text = pattern.text.escape_debug();
    let new = |message: String| Error::new(ErrorKind::NoMatch, message);
    let probe = matches!(pattern.wanted, Wanted::Probe { .. });
    if meant.is_empty() {
        let names = candidates.iter().map(|candidate| candidate.file.name().to_owned()).collect();
        let error = new(format!("no file that the process runs is meant by '{text}'"));
        let wanted = pattern.object.clone().unwrap_or_default();
        return NoMatch { error, names, wanted };
    }
    let path = |at: &usize| candidates.get(*at).map(|candidate| candidate.file.path.clone());
    let where_ = match meant {
        [one] => path(one).unwrap_or_default(),
        many => format!("{} files", many.len()),
    };
    let what = if probe { "USDT probe" } else { "function" };
    let mut error = new(format!("no {what} of {where_} matches '{text}'"));
    let (mut names, mut stripped, mut functions, mut probes) = (Vec::new(), false, 0, 0);
    for at in meant {
        let Some(Ok(image)) = candidates.get_mut(*at).map(Candidate::image) else { continue };
        stripped |= image.stripped;
        functions += image.functions.len();
        probes += image.probes.len();
        if probe {
            names.extend(image.probes.iter().map(|p| format!("{}:{}", p.provider, p.name)));
        } else {
            names.extend(image.functions.iter().flat_map(|f| f.names().map(str::to_owned)));
        }
    }
    let wanted = match &pattern.wanted {
        Wanted::Function(name) => name.clone(),
        Wanted::Probe { provider, name } => format!("{provider}:{name}"),
    };
    if probe && probes == 0 {
        error = new(format!("no USDT probe is in {where_}"));
    } else if !probe && functions == 0 {
        error = new(format!("no function symbol is in {where_}: stripped"))
            .hint("install the program with symbols, or look for its USDT probes: 'usdt:*:*'");
    } else if !probe && stripped {
        error = error.hint(format!(
            "the file is stripped: only the {functions} functions that it exports are known"
        ));
    }
    NoMatch { error, names, wanted }
}
