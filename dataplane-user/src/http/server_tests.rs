use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::{
    http::{Measured, Snapshot},
    report::sample,
};

/// The limit of waits.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Agent {
    hangs: AtomicBool,
    fails: bool,
}

impl Facts for Agent {
    fn hangs(&self) -> Option<String> {
        self.hangs.load(Ordering::Relaxed).then(|| "hangs\nso".to_owned())
    }

    async fn read(&self) -> Result<Snapshot, String> {
        if self.fails {
            return Err("no counters".to_owned());
        }
        Snapshot::of(sample::changed(|_| {}), &Measured { has_tables: true, ..Measured::default() })
    }
}

/// A free port. Another process may take it meanwhile, which these tests do not expect.
fn free() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn begin(talk: BoxFuture<'static, ()>) {
    tokio::spawn(talk);
}

/// Serves the agent on a free port meanwhile.
async fn serving(agent: Agent, meanwhile: impl AsyncFnOnce(SocketAddr, &Agent)) {
    let agent = Arc::new(agent);
    let address = free();
    let (_open, open) = watch::channel(true);
    tokio::select! {
        () = serve(address, Arc::clone(&agent), open, begin) => {}
        () = meanwhile(address, &agent) => {}
    }
}

/// Connects once somebody listens.
async fn connect(address: SocketAddr) -> TcpStream {
    let connecting = async {
        loop {
            if let Ok(stream) = TcpStream::connect(address).await {
                return stream;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(LIMIT, connecting).await.unwrap()
}

/// The whole answer to a request line and a body.
async fn ask(address: SocketAddr, line: &str) -> String {
    let mut stream = connect(address).await;
    stream.write_all(format!("{line} HTTP/1.1\r\nHost: agent\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(LIMIT, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    answer
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap_or_default().parse().unwrap_or_default()
}

#[tokio::test]
async fn four_paths_are_answered_and_only_read() {
    serving(Agent::default(), async |address, _| {
        for (path, content_type, text) in [
            ("/livez", "text/plain; charset=utf-8", "\r\n\r\nok\n"),
            ("/readyz", "text/plain; charset=utf-8", "\r\n\r\nok\n"),
            ("/metrics", "text/plain; version=0.0.4; charset=utf-8", "\nnodefence_mode{mode=\"enforce\"} 1"),
            ("/metrics?name=x", "text/plain; version=0.0.4; charset=utf-8", "nodefence_build_info"),
            ("/v1/status", "application/json", "{\"schema_version\":1,\"kind\":\"Status\",\"state\":\"ok\""),
        ] {
            let answer = ask(address, &format!("GET {path}")).await;
            assert_eq!(status(&answer), 200, "{path}: {answer}");
            assert!(answer.contains(&format!("content-type: {content_type}\r\n")), "{path}: {answer}");
            assert!(answer.contains(text), "{path}: {answer}");
            let head = ask(address, &format!("HEAD {path}")).await;
            assert!(status(&head) == 200 && head.ends_with("\r\n\r\n"), "{path}: {head}");
        }
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            let answer = ask(address, &format!("{method} /v1/status")).await;
            assert_eq!(status(&answer), 405, "{answer}");
            assert!(answer.contains("allow: GET,HEAD\r\n"), "{answer}");
        }
        for path in ["/", "/v1", "/v1/", "/v1/flag", "/v1/status/", "/metrics/x", "//metrics", "/debug/pprof"]
        {
            for method in ["GET", "POST", "DELETE"] {
                let answer = ask(address, &format!("{method} {path}")).await;
                assert_eq!(status(&answer), 404, "{method} {path}: {answer}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_hangs_is_not_alive_and_says_why_in_a_line() {
    serving(Agent::default(), async |address, agent| {
        agent.hangs.store(true, Ordering::Relaxed);
        for path in ["/livez", "/readyz"] {
            let answer = ask(address, &format!("GET {path}")).await;
            assert_eq!(status(&answer), 503, "{answer}");
            assert!(answer.ends_with("\r\n\r\nhangs so\n"), "{answer}");
        }
        // The metrics show the hang, so they are answered.
        assert_eq!(status(&ask(address, "GET /metrics").await), 200);
    })
    .await;
}

#[tokio::test]
async fn a_state_that_cannot_be_read_is_said() {
    serving(Agent { fails: true, ..Agent::default() }, async |address, _| {
        for path in ["/readyz", "/metrics", "/v1/status"] {
            let answer = ask(address, &format!("GET {path}")).await;
            assert!(status(&answer) == 503 && answer.ends_with("no counters\n"), "{answer}");
        }
        assert_eq!(status(&ask(address, "GET /livez").await), 200);
    })
    .await;
}

#[tokio::test]
async fn what_is_no_request_is_refused_and_a_body_is_ignored() {
    serving(Agent::default(), async |address, _| {
        let answer = |bytes: Vec<u8>| async move {
            let mut stream = connect(address).await;
            // The agent may hang up before it has read all.
            let _hung_up = stream.write_all(&bytes).await;
            let mut answer = Vec::new();
            let _reset = timeout(LIMIT, stream.read_to_end(&mut answer)).await.unwrap();
            String::from_utf8(answer).unwrap()
        };
        assert_eq!(status(&answer(b"hello\r\n\r\n".to_vec()).await), 400);
        let long = format!("GET /livez HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(LONGEST));
        assert_eq!(status(&answer(long.into_bytes()).await), 431);
        let body = b"GET /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nbegins".to_vec();
        assert_eq!(status(&answer(body).await), 200);
    })
    .await;
}

/// Far more connections than places, and none sends a request.
#[tokio::test]
async fn silent_clients_make_room_for_one_that_asks() {
    serving(Agent::default(), async |address, _| {
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS * 4 {
            silent.push(connect(address).await);
        }
        let began = Instant::now();
        assert_eq!(status(&ask(address, "GET /livez").await), 200);
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    })
    .await;
}

#[tokio::test]
async fn a_client_that_never_asks_or_never_reads_is_closed() {
    serving(Agent::default(), async |address, _| {
        let mut slow = connect(address).await;
        slow.write_all(b"GET /livez HT").await.unwrap();
        let began = Instant::now();
        let mut answer = Vec::new();
        let _reset = timeout(LIMIT, slow.read_to_end(&mut answer)).await.unwrap();
        let took = began.elapsed();
        assert!(took + Duration::from_secs(1) > PATIENCE && took < WHOLE, "{took:?}");
    })
    .await;
}

/// Another agent holds the port at first.
#[tokio::test]
async fn a_port_that_is_taken_is_opened_once_it_is_free() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let (_open, open) = watch::channel(true);
    let meanwhile = async {
        tokio::select! {
            accepted = taken.accept() => drop(accepted.unwrap()),
            _ = ask(address, "GET /livez") => {}
        }
        drop(taken);
        assert_eq!(status(&ask(address, "GET /livez").await), 200);
    };
    tokio::select! {
        () = serve(address, Arc::new(Agent::default()), open, begin) => {}
        () = meanwhile => {}
    }
}

#[tokio::test]
async fn the_port_is_closed_and_opened_by_its_switch() {
    let address = free();
    let (open, is_open) = watch::channel(true);
    let meanwhile = async {
        for _ in 0..2 {
            assert_eq!(status(&ask(address, "GET /livez").await), 200);
            open.send_replace(false);
            let closed = async {
                while TcpStream::connect(address).await.is_ok() {
                    tokio::task::yield_now().await;
                }
            };
            timeout(LIMIT, closed).await.unwrap();
            open.send_replace(true);
        }
        assert_eq!(status(&ask(address, "GET /livez").await), 200);
        // The last value holds.
        drop(open);
        assert_eq!(status(&ask(address, "GET /livez").await), 200);
    };
    tokio::select! {
        () = serve(address, Arc::new(Agent::default()), is_open, begin) => {}
        () = meanwhile => {}
    }
}
