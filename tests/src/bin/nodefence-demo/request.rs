//! The records of requests and of how they ended.

/// The width of a bucket in milliseconds.
pub(crate) const BUCKET_MS: i64 = 100;

/// The kind of the client that sent a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    /// One TCP connection, request after request.
    KeepAlive,
    /// One UDP socket, request after request.
    Udp,
    /// A new TCP connection for one request.
    New,
    /// One request that the server never answers.
    Idle,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The client got an answer.
    Answered,
    /// ECONNRESET.
    Reset,
    /// ECONNREFUSED.
    Refused,
    /// The client gave up.
    GaveUp,
    /// The client still waited when the run ended.
    Waiting,
    /// Another error.
    Other,
}

/// One request. Its times are in milliseconds after the freeze; negative times are before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) client: usize,
    pub(crate) kind: Kind,
    pub(crate) start: f64,
    pub(crate) end: f64,
    pub(crate) how: End,
}
