//! Messages to the person who waits.

/// Progress for the person who waits: one line on stderr, so that stdout keeps the result alone.
macro_rules! say {
    ($($part:tt)*) => { eprintln!("==> {}", format_args!($($part)*)) };
}

pub(crate) use say;
