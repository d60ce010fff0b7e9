//! An error as text.

/// An error with all its causes, in one line. A cause is left out where the text before already has it: some libraries write it into the
/// error's own text.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| match said {
        said if said.contains(&cause) => said,
        said if said.is_empty() => cause,
        said => format!("{said}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::anyhow;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot poll: {source}")]
    struct WithCause {
        source: io::Error,
    }

    #[test]
    fn a_cause_is_named_once() {
        let error = WithCause { source: io::Error::from_raw_os_error(libc::ENOSYS) };
        assert_eq!(causes(&error.into()), "cannot poll: Function not implemented (os error 38)");
        assert_eq!(
            causes(&anyhow!("no space left").context("cannot write it")),
            "cannot write it: no space left"
        );
    }
}
