use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
};

use super::*;
use crate::report::{Client, ClientError};

struct Echo;

impl Handler for Echo {
    async fn handle(&self, request: Request, _: Peer) -> Reply {
        Reply::ok(&format!("{request:?}"))
    }
}

fn begin(talk: BoxFuture<'static, ()>) {
    tokio::spawn(talk);
}

/// A server that does not serve yet.
fn bound() -> (tempfile::TempDir, PathBuf, tokio::runtime::Runtime, Server) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.sock");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(async { Server::bind(path.clone()) }).unwrap();
    (dir, path, runtime, server)
}

/// Asks for a hand-over, and waits for no answer.
fn ask_to_hand_over(path: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(path).unwrap();
    let request = serde_json::to_string(&Request::HandOver).unwrap();
    stream.write_all(format!("{request}\n").as_bytes()).unwrap();
    stream
}

fn serve() -> (tempfile::TempDir, PathBuf, tokio::runtime::Runtime) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.sock");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = runtime.block_on(async { Server::bind(path.clone()) }).unwrap();
    runtime.spawn(async move { server.serve(Arc::new(Echo), begin).await });
    (dir, path, runtime)
}

#[test]
fn the_silent_hold_nobody_up() {
    let (_dir, path, _runtime) = serve();
    let begun = Instant::now();
    let silent: Vec<UnixStream> =
        (0..3 * MAX_CONNECTIONS).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let answer: String = Client::connect(&path).unwrap().ask(&Request::Nodes).unwrap();
    assert_eq!(answer, "Nodes");
    // Half of the time that a connection may stay silent.
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    // The silent connections are closed by and by.
    for mut stream in silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
}

#[test]
fn a_file_that_is_gone_is_noticed_and_another_one_s_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run/agent.sock");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = runtime.block_on(async { Server::bind(path.clone()) }).unwrap();
    assert!(server.is_there());
    // The file stays under another name, so that its inode's number is not given to the next one.
    std::fs::rename(path.parent().unwrap(), dir.path().join("away")).unwrap();
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    assert!(!server.is_there());
    let other = runtime.block_on(async { Server::bind(path.clone()) }).unwrap();
    assert!(!server.is_there());
    drop(server);
    runtime.spawn(async move { other.serve(Arc::new(Echo), begin).await });
    let answer: String = Client::connect(&path).unwrap().ask(&Request::Nodes).unwrap();
    assert_eq!(answer, "Nodes");
}

/// Counts what it carries out.
struct Counted(AtomicU64);

impl Handler for Counted {
    async fn handle(&self, _: Request, _: Peer) -> Reply {
        self.0.fetch_add(1, Ordering::Relaxed);
        Reply::ok(&self.0.load(Ordering::Relaxed))
    }
}

#[test]
fn a_request_whose_sender_has_left_is_not_carried_out() {
    let (_dir, path, runtime, server) = bound();
    // Nobody serves yet: the process stands still.
    drop(ask_to_hand_over(&path));
    let counted = Arc::new(Counted(AtomicU64::new(0)));
    std::thread::spawn(move || runtime.block_on(server.serve(counted, begin)));
    assert_eq!(Client::connect(&path).unwrap().ask::<u64>(&Request::Nodes).unwrap(), 1);
}

/// Grants hand-overs after a while, and says whether they were heard.
struct Grants(std::sync::mpsc::Sender<bool>);

impl Handler for Grants {
    async fn handle(&self, _: Request, _: Peer) -> Reply {
        tokio::time::sleep(Duration::from_millis(200)).await;
        Reply::ok(&1)
    }

    fn handed_over(&self, heard: bool) {
        self.0.send(heard).unwrap();
    }
}

#[test]
fn a_hand_over_is_heard_by_who_is_still_there() {
    let (_dir, path, runtime, server) = bound();
    let (says, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || runtime.block_on(server.serve(Arc::new(Grants(says)), begin)));
    assert_eq!(Client::connect(&path).unwrap().ask::<i32>(&Request::HandOver).unwrap(), 1);
    assert_eq!(said.recv_timeout(Duration::from_secs(5)), Ok(true));
    let stream = ask_to_hand_over(&path);
    // The request is taken by then, and not answered yet.
    std::thread::sleep(Duration::from_millis(50));
    drop(stream);
    assert_eq!(said.recv_timeout(Duration::from_secs(5)), Ok(false));
}

#[test]
fn who_has_just_come_is_heard() {
    let (_dir, path, _runtime) = serve();
    let clients: Vec<Client> = (0..MAX_CONNECTIONS + 8).map(|_| Client::connect(&path).unwrap()).collect();
    std::thread::scope(|scope| {
        for mut client in clients {
            scope.spawn(move || {
                std::thread::sleep(SPARED / 4);
                assert_eq!(client.ask::<String>(&Request::Nodes).unwrap(), "Nodes");
            });
        }
    });
}

#[test]
fn one_connection_serves_for_several_requests() {
    let (_dir, path, _runtime) = serve();
    let mut client = Client::connect(&path).unwrap();
    for _ in 0..3 {
        assert_eq!(client.ask::<String>(&Request::Status).unwrap(), "Status");
    }
}

#[test]
fn an_agent_that_stands_still_is_said_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.sock");
    let _listens = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mut client = Client::connect(&path).unwrap();
    client.set_patience(Duration::from_millis(50)).unwrap();
    let error = client.ask::<String>(&Request::Nodes).unwrap_err();
    assert!(matches!(error, ClientError::Silent { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("agent.sock has not answered within 50ms; is it stopped"), "{text}");
}

#[test]
fn garbage_is_answered() {
    let (_dir, path, _runtime) = serve();
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"hello\n\xff\xfe\n").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    let answers: Vec<&str> = answers.lines().collect();
    assert!(answers.len() == 2 && answers.iter().all(|answer| answer.contains("no request")), "{answers:?}");
    assert!(answers[1].contains("UTF-8"), "{answers:?}");
}

/// Says who asks.
struct Names;

impl Handler for Names {
    async fn handle(&self, _: Request, peer: Peer) -> Reply {
        Reply::ok(&peer.uid)
    }
}

#[test]
fn who_asks_is_known_by_the_kernel_s_word() {
    let (_dir, path, runtime, server) = bound();
    std::thread::spawn(move || runtime.block_on(server.serve(Arc::new(Names), begin)));
    let uid: u32 = Client::connect(&path).unwrap().ask(&Request::Nodes).unwrap();
    assert_eq!(uid, nix::unistd::geteuid().as_raw());
}

/// Errors that only a kernel or a broken disk can cause are made as they would be.
#[test]
fn whatever_keeps_the_socket_from_being_served_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let no_socket = dir.path().join("file");
    std::fs::write(&no_socket, "").unwrap();
    let (_served, path, _runtime, _server) = bound();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bind = |path: PathBuf| runtime.block_on(async { Server::bind(path) }).map(drop).unwrap_err();
    let mut errors = vec![
        bind(no_socket),
        bind(path.clone()),
        bind(dir.path().join("x".repeat(120))),
        bind("/proc/version/agent.sock".into()),
    ];
    for what in ["cannot set its mode", "cannot remove the stale one"] {
        let source = io::ErrorKind::PermissionDenied.into();
        errors.push(ServerError { path: path.clone(), what, source });
    }
    let mut text: String = errors.iter().map(|error| format!("{error}\n")).collect();
    let (_dir, path, _runtime) = serve();
    for line in
        [b"what?\n".to_vec(), b"\xff\n".to_vec(), [vec![b'x'; MAX_REQUEST + 1], b"\n".to_vec()].concat()]
    {
        let mut stream = UnixStream::connect(&path).unwrap();
        let _refused_early = stream.write_all(&line);
        let mut answer = String::new();
        let _closed = io::BufRead::read_line(&mut io::BufReader::new(stream), &mut answer);
        text += &answer;
    }
    for failure in [stranger(1_000), nobody(io::Error::from(io::ErrorKind::PermissionDenied))] {
        text += &format!("{failure}\n");
    }
    for (folder, name) in [(dir.path(), "DIR"), (_served.path(), "DIR")] {
        text = text.replace(&*folder.to_string_lossy(), name);
    }
    crate::cli::golden::check("socket", &text);
}
