//! An HTTP server between an agent and the API server, in one namespace. It hands requests on, or does with them what a test wants.

use std::{
    fmt,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nodefence::flags::now;
use serde_json::json;
use ureq::{Body, http::Response};

use super::{Api, wire::reset};
use crate::Netns;

/// The port of the loopback device on which the server listens, without TLS.
pub const PORT: u16 = 6445;

/// What ends the list at the begin of a watch.
pub const END_OF_LIST: &str = "k8s.io/initial-events-end";

/// How long an answer waits with [`Fate::Slow`].
const DELAY: Duration = Duration::from_secs(5);
/// How many bytes [`Fate::Slow`] sends each tenth of a second.
const SLOW: usize = 100;
const TENTH: Duration = Duration::from_millis(100);

/// A request of the agent.
#[derive(Debug, Clone)]
pub struct Request {
    /// The path with the query.
    pub path: String,
    /// The header Accept-Encoding.
    pub accepts: Option<String>,
    /// When it came.
    pub at: Instant,
}

impl Request {
    /// The collection, such as `services`.
    pub fn collection(&self) -> &str {
        let path = self.path.split('?').next().unwrap_or_default();
        path.rsplit('/').next().unwrap_or_default()
    }

    /// Whether it wants a watch.
    pub fn is_watch(&self) -> bool {
        self.path.contains("watch=true")
    }

    /// Whether it wants a watch that begins with the list.
    pub fn is_streamed(&self) -> bool {
        self.path.contains("sendInitialEvents=true")
    }

    /// Whether it wants a list, at the begin of a watch or as a page.
    pub fn is_list(&self) -> bool {
        self.is_streamed() || !self.is_watch()
    }
}

/// What is done with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The API server answers it.
    Forward,
    /// The connection ends by a RST.
    Reset,
    /// This HTTP status is the answer, with `Retry-After: 1`.
    Status(u16),
    /// A watch that says at once that the changes are no longer kept.
    Gone,
    /// The API server answers it, and the connection ends after the first object of a streamed list, or in the middle of a page.
    Half,
    /// The API server answers it, and lines with this text are left out.
    Without(&'static str),
    /// The API server answers it, and its clock seems to be so far ahead.
    Ahead(Duration),
    /// The API server answers it, after five seconds, and with 1 kB a second.
    Slow,
}

type Rule = dyn Fn(&Request) -> Fate + Send + Sync;

/// The server. It runs until the process ends.
#[derive(Clone)]
pub struct Faulty {
    api: Api,
    state: Arc<Mutex<State>>,
}

struct State {
    rule: Arc<Rule>,
    requests: Vec<Request>,
    open: Vec<TcpStream>,
    gone: usize,
    zipped: usize,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("requests", &self.state().requests).finish_non_exhaustive()
    }
}

impl Faulty {
    /// Starts the server on the loopback device of `ns`. `api` reaches the API server. Requests have the fate that `rule` says.
    ///
    /// # Errors
    /// Fails if the port is in use.
    pub fn start(
        ns: &Netns,
        api: &Api,
        rule: impl Fn(&Request) -> Fate + Send + Sync + 'static,
    ) -> Result<Self> {
        let (requests, open) = (Vec::new(), Vec::new());
        let state = State { rule: Arc::new(rule), requests, open, gone: 0, zipped: 0 };
        let this = Self { api: api.clone(), state: Arc::new(Mutex::new(state)) };
        let own = this.clone();
        let listener = ns
            .run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, PORT)))
            .with_context(|| format!("listen on port {PORT}"))?;
        // Threads of a thread in the namespace are in it too.
        ns.spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let own = own.clone();
                thread::spawn(move || {
                    // Errors are ignored: the agent reports what it did not get.
                    let _not_served =
                        near.try_clone().map_err(anyhow::Error::from).and_then(|near| own.serve(near));
                    let _closed = near.shutdown(Shutdown::Both);
                });
            }
            Ok(())
        })?;
        Ok(this)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on requests have the fate that this says.
    pub fn rule(&self, rule: impl Fn(&Request) -> Fate + Send + Sync + 'static) {
        self.state().rule = Arc::new(rule);
    }

    /// From now on requests have the fate that `rule` says. What was answered until now ends by a RST.
    pub fn cut(&self, rule: impl Fn(&Request) -> Fate + Send + Sync + 'static) {
        self.rule(rule);
        for near in self.state().open.drain(..) {
            // An error is ignored: the connection has ended by itself.
            let _ended = reset(&near);
        }
    }

    /// The requests that came since then.
    pub fn requests(&self, since: Instant) -> Vec<Request> {
        self.state().requests.iter().filter(|request| request.at >= since).cloned().collect()
    }

    /// How often the API server itself said that changes are no longer kept.
    pub fn gone(&self) -> usize {
        self.state().gone
    }

    /// How many answers of the API server were compressed.
    pub fn zipped(&self) -> usize {
        self.state().zipped
    }

    /// Serves one request.
    fn serve(&self, mut near: TcpStream) -> Result<()> {
        let mut head = BufReader::new(near.try_clone()?).lines();
        let first = head.next().context("no request")??;
        let path = first.split(' ').nth(1).context("no path")?.to_owned();
        let mut accepts = None;
        for line in head.map_while(Result::ok).take_while(|line| !line.is_empty()) {
            if let Some((name, value)) = line.split_once(": ")
                && name.eq_ignore_ascii_case("accept-encoding")
            {
                accepts = Some(value.to_owned());
            }
        }
        let request = Request { path, accepts, at: Instant::now() };
        let rule = Arc::clone(&self.state().rule);
        let fate = rule(&request);
        self.state().requests.push(request.clone());
        self.state().open.push(near.try_clone()?);
        match fate {
            Fate::Reset => return Ok(reset(&near)?),
            Fate::Status(code) => return Ok(status(&mut near, code)?),
            Fate::Gone => {
                begin(&mut near, 200, None, None)?;
                let gone = json!({"type": "ERROR", "object": failure(410)});
                chunk(&mut near, format!("{gone}\n").as_bytes())?;
                return Ok(near.write_all(b"0\r\n\r\n")?);
            }
            Fate::Slow => thread::sleep(DELAY),
            Fate::Forward | Fate::Half | Fate::Without(_) | Fate::Ahead(_) => {}
        }
        // What is to be read here must not be compressed.
        let is_read = matches!(fate, Fate::Half | Fate::Without(_));
        let accepts = request.accepts.as_deref().filter(|_| !is_read);
        let answer = self.api.open(&request.path, accepts)?;
        let zip = answer.headers().get("content-encoding").and_then(|value| value.to_str().ok());
        let zip = zip.map(str::to_owned);
        self.state().zipped += usize::from(zip.is_some());
        let date = match fate {
            Fate::Ahead(by) => Some((now().wall + by).strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()),
            _ => None,
        };
        begin(&mut near, answer.status().as_u16(), zip.as_deref(), date.as_deref())?;
        match fate {
            Fate::Half => half(&mut near, &request, answer)?,
            Fate::Without(text) => without(&mut near, text, answer)?,
            _ => self.hand_on(&mut near, fate == Fate::Slow, answer)?,
        }
        Ok(())
    }

    fn hand_on(&self, near: &mut TcpStream, is_slow: bool, answer: Response<Body>) -> io::Result<()> {
        let mut body = answer.into_body().into_reader();
        let mut buffer = vec![0; if is_slow { SLOW } else { 64 << 10 }];
        loop {
            let length = body.read(&mut buffer)?;
            if length == 0 {
                return near.write_all(b"0\r\n\r\n");
            }
            let said = String::from_utf8_lossy(&buffer[..length]);
            self.state().gone += usize::from(said.contains("\"code\":410"));
            if is_slow {
                thread::sleep(TENTH);
            }
            chunk(near, &buffer[..length])?;
        }
    }
}

/// Ends the connection in the middle of a list.
fn half(near: &mut TcpStream, request: &Request, answer: Response<Body>) -> io::Result<()> {
    let mut body = BufReader::new(answer.into_body().into_reader());
    let mut text = Vec::new();
    if request.is_watch() {
        body.read_until(b'\n', &mut text)?;
    } else {
        body.read_to_end(&mut text)?;
        text.truncate(text.len() / 2);
    }
    // The missing last chunk says that this is not the whole.
    chunk(near, &text)
}

fn without(near: &mut TcpStream, text: &str, answer: Response<Body>) -> io::Result<()> {
    for line in BufReader::new(answer.into_body().into_reader()).lines() {
        let line = line?;
        if !line.contains(text) {
            chunk(near, format!("{line}\n").as_bytes())?;
        }
    }
    near.write_all(b"0\r\n\r\n")
}

fn failure(code: u16) -> serde_json::Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "told so by the test", "code": code})
}

fn status(near: &mut TcpStream, code: u16) -> io::Result<()> {
    let body = failure(code).to_string();
    let length = body.len();
    let head = format!("HTTP/1.1 {code} Told\r\nContent-Type: application/json\r\nRetry-After: 1\r\n");
    near.write_all(format!("{head}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}").as_bytes())
}

fn begin(near: &mut TcpStream, code: u16, zip: Option<&str>, date: Option<&str>) -> io::Result<()> {
    let date = date.map(|date| format!("Date: {date}\r\n")).unwrap_or_default();
    let zip = zip.map(|zip| format!("Content-Encoding: {zip}\r\n")).unwrap_or_default();
    let head = format!("HTTP/1.1 {code} Answer\r\nContent-Type: application/json\r\n{zip}{date}");
    near.write_all(format!("{head}Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n").as_bytes())
}

fn chunk(near: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    near.write_all(&[format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat())
}
