//! The clients' records: requests and how they ended.

/// Width of a bucket in milliseconds.
pub(crate) const BUCKET_MS: i64 = 100;

/// The kind of client that a request came from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    /// One TCP connection, request after request.
    KeepAlive,
    /// One UDP socket, request after request.
    Udp,
    /// A new TCP connection for one request.
    New,
    /// One request that is answered after minutes.
    Idle,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Answered.
    Answered,
    /// ECONNRESET.
    Reset,
    /// ECONNREFUSED.
    Refused,
    /// The client gave up.
    GaveUp,
    /// Still waiting when the run ended.
    Waiting,
    /// Another error.
    Other,
}

/// One request. Times in milliseconds from the freeze on (negative: before it).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) client: usize,
    pub(crate) kind: Kind,
    pub(crate) start: f64,
    pub(crate) end: f64,
    pub(crate) how: End,
}
