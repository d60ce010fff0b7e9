//! The half of `bench ipvs` that needs a kernel with IPVS. One guest runs the release programs. Their figures come over its second serial line.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::guest;
use super::kernel::Kernel;
use super::plan::{self, DONE, PARAMETER, Plan, Work};
use super::{kube, packed, qemu, verdict};
use crate::assets;
use crate::process;
use crate::say::say;
use crate::test::job::{End, Event};
use crate::workspace::Workspace;

/// The plan's name in the guest.
const SET: &str = "bench";
/// The prefix of the line of figures (`bench/src/ipvs/mod.rs`).
const FIGURES: &str = "@@figures ";
/// The characters that move a terminal back to the begin of the line and clear it (`bench/src/progress.rs`).
const REWRITE: &str = "\r\x1b[K";
/// The guest's kernel: that of Debian stable.
const KERNEL: Kernel = Kernel::V6_12;
/// The limit. A guest that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(90 * 60);

/// The verbs that the guest runs, one after the other.
const VERBS: [&str; 2] = ["ipvs-tables", "ipvs-sync"];

/// Runs `programs[0]` in a guest that has all of `programs`, beside an API server that `host` runs. Writes the figures, a JSON array, to `to`.
pub(crate) fn figures(
    workspace: &Workspace,
    programs: &[PathBuf],
    host: &Path,
    quick: bool,
    to: &Path,
) -> Result<()> {
    qemu::check_machine()?;
    let program = programs.first().context("no program to run")?;
    let folder = workspace.target.join("vm-bench");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let base = folder.join("base.cpio");
    let init = guest::init()?;
    let ours: Vec<&PathBuf> = programs.iter().chain([&init]).collect();
    guest::write(&base, ours.iter().copied(), &[(SET.to_owned(), calls(program, quick))])?;
    let (packed, _) = packed::pack(&folder, ours.iter().copied(), guest::places(&init), Instant::now())?;
    let ours = ours.iter().map(|program| packed.part(program)).collect::<Result<Vec<_>>>()?;
    let assets = folder.join("assets.cpio");
    guest::write_assets(&assets, &[assets::ensure(workspace, assets::Set::Tests)?.join("kube-proxy")])?;
    let kernel = KERNEL.prepare()?;
    say!("large IPVS tables: booting {}", kernel.release);
    let guest = qemu::Guest {
        kernel: &kernel,
        parts: &[&[&*base, &*assets], &*ours].concat(),
        folder: &folder,
        name: SET,
        parameters: &format!("{PARAMETER}={SET} nodefence.test_api_server={}", kube::API_SERVER),
        network: &kube::wire(),
        host: Some(host),
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
    fs::remove_file(&assets)?;
    Ok(())
}

/// The guest's plan: a call for each verb.
fn calls(program: &Path, quick: bool) -> Plan {
    let one = |verb: &str| {
        let arguments = [Some(verb), quick.then_some("--quick")].into_iter().flatten().map(str::to_owned);
        Work::Program {
            name: verb.to_owned(),
            program: guest::at(program),
            arguments: arguments.collect(),
            ipvs: true,
        }
    };
    Plan { environment: Vec::new(), work: VERBS.map(one).into() }
}

/// Reads the lines of the guest.
#[derive(Debug, Default)]
struct Reader {
    figures: Vec<String>,
    ends: Vec<End>,
}

impl Reader {
    /// Takes one line. Returns the text to print for the person who waits.
    fn line<'a>(&mut self, line: &'a str) -> Option<&'a str> {
        if let Some(figures) = line.strip_prefix(FIGURES) {
            self.figures.push(figures.to_owned());
            return None;
        }
        match plan::read(line).1 {
            Event::End(end) => self.ends.push(end),
            // A line of progress was written over again and again. Its last text counts.
            Event::Line(line) if !line.starts_with(DONE) => return line.rsplit(REWRITE).next(),
            Event::Line(_) | Event::Begin | Event::Again(_) => {}
        }
        None
    }

    /// The figures of all calls.
    ///
    /// # Errors
    /// Fails if a call failed or printed no figures.
    fn figures(self) -> Result<String> {
        let well = End::Code(Some(0));
        if let Some((verb, end)) = VERBS.iter().zip(&self.ends).find(|(_, end)| **end != well) {
            bail!("the guest's {verb} ended with {end:?}");
        }
        if self.ends.len() < VERBS.len() {
            bail!("the guest's benchmarks did not come to their end");
        }
        if self.figures.len() < VERBS.len() {
            bail!("one of the guest's benchmarks printed no figures");
        }
        Ok(format!("[{}]", self.figures.join(",")))
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
            "@@begin a\n\r\x1b[Kread and plan  1/9\r\x1b[Kread and plan  9.0 s\n@@figures {\"a\":1}\n@@end a\t0\n\
             @@begin b\n@@figures {\"b\":2}\n@@end b\t0\n@@done\n",
        );
        assert_eq!(
            (figures.ok().as_deref(), shown),
            (Some("[{\"a\":1},{\"b\":2}]"), vec!["read and plan  9.0 s".to_owned()])
        );
        let first = "@@begin a\n@@figures {}\n@@end a\t0\n";
        for second in [
            "",
            "@@begin b\n@@figures {}\n@@end b\t1\n",
            "@@begin b\n@@figures {}\n",
            "@@begin b\n@@end b\t0\n",
        ] {
            assert!(read(&format!("{first}{second}")).0.is_err(), "{second}");
        }
    }
}
