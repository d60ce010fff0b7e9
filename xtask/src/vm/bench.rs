//! The half of `bench ipvs` that needs a kernel with IPVS: the release programs in one guest, whose figures come over its second serial line.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::guest::{self, BEGIN, DONE, END, LOAD_IPVS};
use super::kernel::Kernel;
use super::{qemu, verdict};
use crate::process;
use crate::say;
use crate::workspace::Workspace;

/// The call's name in the guest.
const SET: &str = "bench";
/// What the line of figures begins with (`bench/src/ipvs/mod.rs`).
const FIGURES: &str = "@@figures ";
/// How a line on a terminal is begun anew (`bench/src/progress.rs`).
const REWRITE: &str = "\r\x1b[K";
/// Debian's stable kernel.
const KERNEL: Kernel = Kernel::V6_12;
/// A guest that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(90 * 60);

/// Runs `programs[0] ipvs-tables` in a guest that has all of `programs`; writes what it found, JSON, to `to`.
pub(crate) fn figures(workspace: &Workspace, programs: &[PathBuf], quick: bool, to: &Path) -> Result<()> {
    super::check_machine()?;
    let program = programs.first().context("no program to run")?;
    let folder = workspace.target.join("vm-bench");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let base = folder.join("base.cpio");
    guest::write(&base, programs, &[(SET, call(program, quick))], &folder)?;
    let kernel = KERNEL.prepare()?;
    say!("large IPVS tables: booting {}", kernel.release);
    let guest = qemu::Guest {
        kernel: &kernel,
        parts: &[&base],
        folder: &folder,
        name: SET,
        parameters: &format!("nodefence.runs={SET}"),
        network: &[],
        host: None,
    };
    let mut reader = Reader::default();
    let ended = guest.boot(LIMIT, |line| {
        if let Some(text) = reader.line(line) {
            eprintln!("{text}");
        }
    })?;
    process::check_interrupt()?;
    let console = fs::read(&ended.console).unwrap_or_default();
    let console = String::from_utf8_lossy(&console);
    let complaints = verdict::complaints(&console);
    if !ended.by_itself {
        bail!(
            "the guest was not done after {} s; its kernel's log is {}",
            LIMIT.as_secs(),
            ended.console.display()
        );
    }
    if !complaints.is_empty() {
        bail!("the guest's kernel complained ({}): {}", ended.console.display(), complaints.join("; "));
    }
    let found = reader.figures().with_context(|| format!("kernel's log: {}", ended.console.display()))?;
    fs::write(to, found).with_context(|| format!("cannot write {}", to.display()))?;
    fs::remove_file(&base)?;
    Ok(())
}

/// What the guest runs.
fn call(program: &Path, quick: bool) -> String {
    let quick = if quick { " --quick" } else { "" };
    format!(
        "{LOAD_IPVS}echo \"{BEGIN} {SET}\" >/dev/ttyS1\n/{} ipvs-tables{quick} </dev/null >/dev/ttyS1 2>&1\necho \"{END} {SET} $?\" >/dev/ttyS1\n",
        guest::at(program)
    )
}

/// Reads the lines of the guest.
#[derive(Debug, Default)]
struct Reader {
    figures: Option<String>,
    code: Option<String>,
}

impl Reader {
    /// Takes one line; gives what is for whoever watches.
    fn line<'a>(&mut self, line: &'a str) -> Option<&'a str> {
        if let Some(figures) = line.strip_prefix(FIGURES) {
            self.figures = Some(figures.to_owned());
        } else if let Some(rest) = line.strip_prefix(END) {
            self.code = rest.rsplit(' ').next().map(str::to_owned);
        } else if !line.starts_with(BEGIN) && !line.starts_with(DONE) {
            // A line that was written over again and again ends with what it came to be.
            return line.rsplit(REWRITE).next();
        }
        None
    }

    /// The figures, where the program ended well.
    fn figures(self) -> Result<String> {
        match (self.code.as_deref(), self.figures) {
            (Some("0"), Some(figures)) => Ok(figures),
            (Some("0"), None) => bail!("the guest's benchmark printed no figures"),
            (Some(code), _) => bail!("the guest's benchmark ended with code {code}"),
            (None, _) => bail!("the guest's benchmark did not come to its end"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Result<String>, Vec<String>) {
        let mut reader = Reader::default();
        let shown = text.lines().filter_map(|line| reader.line(line).map(str::to_owned)).collect();
        (reader.figures(), shown)
    }

    #[test]
    fn figures_count_where_the_program_ended_well() {
        let (figures, shown) = read(
            "@@begin bench\n\r\x1b[Kread and plan  1/9\r\x1b[Kread and plan  9.0 s\n@@figures {\"a\":1}\n@@end bench 0\n@@done\n",
        );
        assert_eq!(
            (figures.ok().as_deref(), shown),
            (Some("{\"a\":1}"), vec!["read and plan  9.0 s".to_owned()])
        );
        assert!(read("@@begin bench\n@@figures {}\n@@end bench 1\n").0.is_err());
        assert!(read("@@begin bench\n@@figures {}\n").0.is_err());
        assert!(read("@@begin bench\n@@end bench 0\n").0.is_err());
    }
}
