use super::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;

fn hello(version: u32) -> Reply {
    Reply::Hello(Hello {
        wire_version: version,
        pid: 1,
        ppid: 0,
        exe: b"/bin/x".to_vec(),
        args: Vec::new(),
        backend: "rseq".into(),
        backend_why: String::new(),
        site: "flag".into(),
        tracepoints: 0,
        sessions: 0,
        version: "0".into(),
    })
}

/// Connects to a fake agent that swallows the greeting and then does as told.
fn against(agent: impl FnOnce(UnixStream) + Send + 'static) -> Result<Client, ClientError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || agent(listener.accept().unwrap().0));
    let client = Client::connect(&path);
    drop(thread);
    client
}

fn swallow(stream: &UnixStream) {
    let mut stream = stream;
    frame::read_magic(&mut stream).unwrap();
    let request: Request = frame::read(&mut stream, FRAME_MAX).unwrap();
    assert_eq!(request, Request::Hello { wire_version: WIRE_VERSION });
}

#[test]
fn handshake_names_the_process_by_credentials_not_by_its_word() {
    let client = against(|stream| {
        swallow(&stream);
        frame::write(&mut &stream, &hello(WIRE_VERSION)).unwrap();
        std::thread::sleep(Duration::from_millis(200));
    });
    let client = client.unwrap();
    assert_eq!(client.pid, std::process::id());
    assert_eq!(client.hello.pid, 1);
    assert!(!client.closed());
}

#[test]
fn another_version_is_refused_with_its_number() {
    let error = against(|stream| {
        swallow(&stream);
        frame::write(&mut &stream, &hello(WIRE_VERSION + 6)).unwrap();
    });
    let theirs = Some(WIRE_VERSION + 6);
    assert!(matches!(error, Err(ClientError::Version { theirs: t }) if t == theirs), "{error:?}");
}

#[test]
fn d8_a_silent_agent_is_given_up_after_a_second() {
    let begin = Instant::now();
    let error = against(|stream| {
        std::thread::sleep(Duration::from_secs(3));
        drop(stream);
    });
    assert!(matches!(error, Err(ClientError::Silent)), "{error:?}");
    assert!(begin.elapsed() < Duration::from_millis(1500), "{:?}", begin.elapsed());
}

#[test]
fn a_reply_that_trickles_in_has_one_deadline() {
    let begin = Instant::now();
    let error = against(|stream| {
        for byte in [200_u8, 0, 0, 0].into_iter().chain(std::iter::repeat_n(7, 40)) {
            if (&stream).write_all(&[byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    assert!(matches!(error, Err(ClientError::Silent)), "{error:?}");
    assert!(begin.elapsed() < Duration::from_millis(1500), "{:?}", begin.elapsed());
}

#[test]
fn x5_garbage_and_hang_ups_are_errors() {
    type Right = fn(&ClientError) -> bool;
    let cases: [(&[u8], Right); 4] = [
        (b"", |e| matches!(e, ClientError::TurnedAway)),
        (b"\x05\0\0\0ab", |e| matches!(e, ClientError::TurnedAway)),
        (b"\xff\xff\xff\xff", |e| matches!(e, ClientError::Garbage(_))),
        (b"\x03\0\0\0\xff\xff\xff", |e| matches!(e, ClientError::Version { theirs: None })),
    ];
    for (bytes, right) in cases {
        let error = against(move |mut stream| {
            swallow(&stream);
            stream.write_all(bytes).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        });
        assert!(right(error.as_ref().unwrap_err()), "{bytes:?}: {error:?}");
    }
}

#[test]
fn nobody_listening_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.sock");
    assert!(matches!(Client::connect(&path), Err(ClientError::Gone)));
    drop(UnixListener::bind(&path).unwrap());
    assert!(matches!(Client::connect(&path), Err(ClientError::Gone)));
}

#[test]
fn d8_a_full_backlog_does_not_hang_connect() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.sock");
    let socket = net::socket(net::AddressFamily::UNIX, net::SocketType::STREAM, None).unwrap();
    net::bind(&socket, &net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    net::listen(&socket, 0).unwrap();
    let patience = Duration::from_millis(100);
    let first = connect_within(&path, patience);
    assert!(first.is_ok(), "{first:?}");
    let begin = Instant::now();
    let second = connect_within(&path, patience);
    assert!(matches!(second, Err(ClientError::Silent)), "{second:?}");
    assert!(begin.elapsed() < Duration::from_secs(1));
}

#[test]
fn a_late_answer_is_not_taken_for_another() {
    let client = against(|stream| {
        swallow(&stream);
        frame::write(&mut &stream, &hello(WIRE_VERSION)).unwrap();
        let _: Request = frame::read(&mut &stream, FRAME_MAX).unwrap();
        std::thread::sleep(PATIENCE + Duration::from_millis(200));
        frame::write(&mut &stream, &Reply::Tracepoints(Vec::new())).unwrap();
        std::thread::sleep(Duration::from_secs(1));
    });
    let client = client.unwrap();
    assert!(matches!(client.list("*"), Err(ClientError::Silent)));
    std::thread::sleep(Duration::from_millis(400));
    assert!(matches!(client.detach(), Err(ClientError::Silent)));
}
