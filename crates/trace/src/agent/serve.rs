//! Requests to replies.

use super::conn::{Conn, State};
use crate::control::{self, Control};
use crate::functions::{self, Refusal};
use crate::session::{self, AttachError, Matched};
use crate::site;
use owlet_sys::process;
use owlet_wire::WIRE_VERSION;
use owlet_wire::config::glob;
use owlet_wire::control::{Hello, Reply, Request, TracepointInfo};
use owlet_wire::schema::{Field, FieldRef, Type, TypeRef};

/// What to do after a reply.
pub(super) enum After {
    /// Nothing.
    Reply(Reply),
    /// Wait for a grace period, outside of the gate, before replying.
    Synchronize(Reply),
}

/// Answers one request.
pub(super) fn serve(conn: &mut Conn, request: Request) -> After {
    match (conn.state, request) {
        (State::Hello, Request::Hello { wire_version }) => After::Reply(hello(conn, wire_version)),
        (State::Hello, _) => {
            conn.state = State::Closing;
            After::Reply(error("the first request must be a hello", ""))
        }
        (_, Request::Hello { .. }) => After::Reply(error("the hello has been said", "")),
        (_, Request::List { pattern }) => After::Reply(Reply::Tracepoints(list(&pattern))),
        (_, Request::Attach) => attach(conn),
        (_, Request::Control { rules }) => {
            let reply = matched(session::control(conn.session, &rules));
            // Rules that switch off leave lists behind.
            After::Synchronize(reply)
        }
        (_, Request::Detach) => detach(conn),
        (_, Request::Functions { pattern }) => {
            After::Reply(Reply::Functions(functions::list(&pattern)))
        }
        (_, Request::AttachFunctions(wanted)) => {
            After::Reply(match functions::attach(conn.owner(), &wanted) {
                Ok(matched) => functions_matched(matched),
                Err(Refusal { message, hint }) => error(message, hint),
            })
        }
        (_, Request::DetachFunctions { pattern, own }) => {
            let owner = own.then(|| conn.owner());
            After::Synchronize(functions_matched(functions::detach(&pattern, owner)))
        }
        (_, Request::Standing { maps }) => {
            After::Reply(match functions::standing(conn.owner(), maps) {
                Some(standing) => Reply::Standing(standing),
                None => error("this connection has attached to no function", ""),
            })
        }
    }
}

fn functions_matched(found: functions::Matched) -> Reply {
    let functions::Matched { matched, links } = found;
    Reply::FunctionsMatched { matched, links }
}

/// A request that failed.
pub(super) fn error(message: impl Into<String>, hint: impl Into<String>) -> Reply {
    Reply::Error { message: message.into(), hint: hint.into() }
}

fn hello(conn: &mut Conn, wire_version: u32) -> Reply {
    if wire_version != WIRE_VERSION {
        conn.state = State::Closing;
        let message = format!(
            "the program speaks version {WIRE_VERSION} of the protocol, the command version {wire_version}"
        );
        return error(message, "build both from the same version of owlet");
    }
    conn.state = State::Open;
    let (tracepoints, busy) = match control::lock() {
        Some(control) => (control::lines(control.points.iter().copied()), control.busy_sites),
        None => (0, 0),
    };
    Reply::Hello(Hello {
        wire_version: WIRE_VERSION,
        pid: process::getpid(),
        // SAFETY: getppid takes no argument and cannot fail.
        ppid: unsafe { libc::getppid() }.cast_unsigned(),
        exe: session::exe(),
        args: session::args(),
        backend: match owlet_percpu::backend() {
            owlet_percpu::Backend::Rseq => "rseq".to_owned(),
            owlet_percpu::Backend::Portable => "portable".to_owned(),
        },
        backend_why: owlet_percpu::backend_why().to_owned(),
        site: sites(busy),
        tracepoints,
        sessions: u32::try_from(session::count()).unwrap_or(u32::MAX),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// How sites are switched, and what is in the way.
fn sites(busy: usize) -> String {
    match (site::probe(), busy) {
        (Err(refused), _) => format!("{} (refused: {refused})", site::KIND),
        (Ok(()), 0) => site::KIND.to_owned(),
        (Ok(()), busy) => format!("{} ({busy} held by a debugger or uprobe)", site::KIND),
    }
}

fn attach(conn: &mut Conn) -> After {
    if conn.session.is_some() {
        return After::Reply(error("this connection has a session already", ""));
    }
    if conn.fds.is_empty() && core::mem::take(&mut conn.cut) {
        return After::Reply(error(
            "it has reached its limit on open files, and needs one more for the session",
            "raise the limit of the running process with `prlimit --pid PID --nofile=1024`",
        ));
    }
    if conn.fds.is_empty() {
        return After::Reply(error("no descriptor came with the request", ""));
    }
    let fd = conn.fds.remove(0);
    After::Reply(match session::attach(fd) {
        Ok((id, outcome)) => {
            conn.session = Some(id);
            reply(outcome)
        }
        Err(failed) => error(failed.to_string(), failed.hint()),
    })
}

fn detach(conn: &mut Conn) -> After {
    match conn.session.take() {
        Some(id) => {
            session::remove(id);
            After::Synchronize(Reply::Detached)
        }
        None => After::Reply(error("this connection has no session", "")),
    }
}

fn matched(outcome: Result<Matched, AttachError>) -> Reply {
    match outcome {
        Ok(outcome) => reply(outcome),
        Err(failed) => error(failed.to_string(), failed.hint()),
    }
}

fn reply(outcome: Matched) -> Reply {
    let Matched { matched, enabled, known, sessions } = outcome;
    Reply::Matched { matched, enabled, known, sessions }
}

/// All tracepoints of that pattern, by name and place.
///
/// The tracepoints of one bridged call site are one [`line`](control::line): the first one's kind,
/// everybody's hits, and the fields of the newest variant of that kind.
fn list(pattern: &str) -> Vec<TracepointInfo> {
    let Some(control) = control::lock() else { return Vec::new() };
    let mut found: Vec<_> = control
        .points
        .iter()
        .filter(|core| glob(pattern, core.desc.name))
        .map(|core| TracepointInfo {
            name: core.desc.name.to_owned(),
            kind: core.desc.kind,
            level: core.desc.level,
            file: core.desc.file.to_owned(),
            line: core.desc.line,
            doc: core.desc.doc.to_owned(),
            fields: core.desc.fields.iter().map(field).collect(),
            enabled: core.is_on(),
            hits: Control::hits(core),
        })
        .collect();
    found.sort_by(|a, b| (&a.name, &a.file, a.line).cmp(&(&b.name, &b.file, b.line)));
    found.dedup_by(|next, first| {
        let same = (&next.name, &next.file, next.line) == (&first.name, &first.file, first.line);
        if same {
            first.enabled |= next.enabled;
            first.hits += next.hits;
            if next.kind == first.kind {
                first.fields = std::mem::take(&mut next.fields);
            }
        }
        same
    });
    found
}

fn field(field: &FieldRef<'_>) -> Field {
    Field { name: field.name.to_owned(), ty: ty(&field.ty) }
}

fn ty(found: &TypeRef<'_>) -> Type {
    match found {
        TypeRef::Scalar(scalar) => Type::Scalar(*scalar),
        TypeRef::Str => Type::Str,
        TypeRef::Bytes => Type::Bytes,
        TypeRef::Array(scalar, len) => Type::Array(*scalar, *len),
        TypeRef::Seq(scalar) => Type::Seq(*scalar),
        TypeRef::Enum(scalar, names) => {
            Type::Enum(*scalar, names.iter().map(|(n, name)| (*n, (*name).to_owned())).collect())
        }
        TypeRef::Option(inner) => Type::Option(Box::new(ty(inner))),
        TypeRef::Dynamic => Type::Dynamic,
    }
}
