//! Progress messages.

/// Prints a line of progress to stderr. stdout has the result alone.
macro_rules! say {
    ($($part:tt)*) => { eprintln!("==> {}", format_args!($($part)*)) };
}

pub(crate) use say;
