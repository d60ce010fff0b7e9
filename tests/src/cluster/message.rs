//! What the host asks of a guest: a line of JSON for each request, over a connection of its own, and a line with the reply.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::Netns;

/// The port on which a guest listens.
pub(super) const PORT: u16 = 7000;

/// How long the connection itself may take. A guest may be busy with its start.
const CONNECT: Duration = Duration::from_secs(10);

/// A request to a guest.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Request {
    /// Write a file. Folders above it are made.
    Put {
        /// The file's path.
        path: String,
        /// What the file has afterwards.
        text: String,
    },
    /// Run a line of `sh` to its end.
    Run {
        /// The line.
        line: String,
    },
    /// Start a program that goes on running. Its output goes to `/var/log/NAME`.
    Start {
        /// The name of its log.
        name: String,
        /// The program and its arguments.
        words: Vec<String>,
    },
    /// Stop every process but the guest's own two, and wait until all have stopped.
    Freeze,
    /// Let these processes go on.
    Thaw,
    /// From now on send a line for each time in which the guest stood still: its length in milliseconds.
    Gaps,
}

/// The reply of a guest.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Reply {
    /// It is done. The text is what a line of `sh` printed.
    Done(String),
    /// It failed.
    Failed(String),
}

/// The way to one guest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guest {
    /// The guest's address.
    pub(super) address: Ipv4Addr,
}

impl Guest {
    /// Sends a request from `ns`, and waits for the reply.
    pub(super) fn ask(self, ns: &Netns, request: &Request, limit: Duration) -> Result<String> {
        let what = || format!("{} to the guest at {}", name(request), self.address);
        let reply = ns.within(|| self.send(request, limit)).with_context(what)?;
        match reply {
            Reply::Done(text) => Ok(text),
            Reply::Failed(error) => bail!("{}: {error}", what()),
        }
    }

    fn send(self, request: &Request, limit: Duration) -> Result<Reply> {
        let mut line = String::new();
        self.open(request, Some(limit))?.read_line(&mut line).context("no reply")?;
        serde_json::from_str(&line).with_context(|| format!("a reply that is none: {line:?}"))
    }

    /// Sends a request from the calling thread, which must be in the namespace. The reply is still to be read.
    pub(super) fn open(self, request: &Request, limit: Option<Duration>) -> Result<BufReader<TcpStream>> {
        let to = SocketAddr::from((self.address, PORT));
        let mut stream = TcpStream::connect_timeout(&to, CONNECT).context("it does not answer")?;
        stream.set_read_timeout(limit)?;
        stream.write_all(format!("{}\n", serde_json::to_string(request)?).as_bytes())?;
        Ok(BufReader::new(stream))
    }
}

/// The request in a few words, for errors.
fn name(request: &Request) -> String {
    match request {
        Request::Put { path, .. } => format!("write of {path}"),
        Request::Run { line } => format!("`{line}`"),
        Request::Start { name, .. } => format!("start of {name}"),
        Request::Freeze => "freeze".to_owned(),
        Request::Thaw => "thaw".to_owned(),
        Request::Gaps => "watch".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_fit_on_a_line_each() {
        let put = Request::Put { path: "/a".to_owned(), text: "one\ntwo\n".to_owned() };
        for request in [put, Request::Run { line: "true\ntrue".to_owned() }, Request::Freeze, Request::Gaps] {
            let line = serde_json::to_string(&request).expect("JSON");
            assert!(!line.contains('\n'), "{line}");
            let read: Request = serde_json::from_str(&line).expect("a request");
            assert_eq!(format!("{read:?}"), format!("{request:?}"));
        }
        let reply = serde_json::to_string(&Reply::Done("a\nb".to_owned())).expect("JSON");
        assert!(!reply.contains('\n'), "{reply}");
    }
}
