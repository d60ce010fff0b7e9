use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context as _;
use clap::CommandFactory as _;
use serde::de::DeserializeOwned;

use super::{
    adjust,
    args::{
        AgentArgs, Cli, CompletionsArgs, ControllerArgs, DetachArgs, DoctorArgs, FlagArgs, FlowsArgs, Format,
        GuardArgs, LogLevelArgs, ManArgs, ModeArgs, OnArgs, RepairArgs, StatusArgs, UnflagArgs, Verb,
    },
    audit, crds, doctor, environment,
    exit::Exit,
    explain, flag,
    log::Log,
    nodes::nodes,
    off,
    output::{print, put, say, warn},
    ready::no_answer,
    status, tables,
    values::{AnswerArg, GuardArg, LogFormat, ProxyArg, TcArg, XdpArg},
};
use crate::{
    agent::{
        self, AuditSettings, Ended, InterfaceChoice, Lock, Logging, PodsFile, Settings, Source, VACANT,
        own_folder, remove_announcement,
    },
    controller, dataplane,
    drain::{self, GuardKind},
    flags::FlagStore,
    last_view::ViewFile,
    ledger,
    off::{OffFile, Owner, TakenBack, take_back},
    plan::{Answer, Mode},
    proxy,
    report::{
        AuditReport, BackendRow, Client, ClientError, CounterRow, Detached, Document, ErrorKind, FlagReport,
        FlowFilter, FlowList, List, ModeReport, OrOff, PATIENCE_WITH_CHALLENGE, RepairReport, Request,
        Server, Status, StatusReport, UnflagReport,
    },
    source::{ApiServer, Kubernetes, Objects, Pace},
};

/// Why `detach` may not run beside an agent.
pub(super) const END_IT: &str = "end it first, or it would attach again";
const NOT_RESTORED: &str = "all else is removed, but destinations of flagged nodes may still have weight 0 in IPVS (`ipvsadm -Ln` shows them; a restart of kube-proxy \
     gives them their weight back)";
const TAKE_SIGNALS: &str = "cannot take signals";
const START_ANEW: &str = "cannot start the agent anew";
const START_THREADS: &str = "cannot start the agent's threads";

const START_CONTROLLER: &str = "cannot start the controller";

/// The contexts of errors that only a kernel or another program can cause.
#[cfg(test)]
pub(super) const CONTEXTS: [&str; 6] =
    [NOT_RESTORED, TAKE_SIGNALS, START_ANEW, START_THREADS, START_CONTROLLER, crds::START_CLIENT];

/// Carries out one verb. `objects`: the objects that an agent follows in place of a cluster file.
pub(super) fn run(cli: Cli, objects: Option<Objects>) -> anyhow::Result<Exit> {
    let caller = Caller { socket: cli.socket(), format: cli.output };
    match cli.verb {
        Verb::Agent(ref args) => {
            let source = match (objects, &args.cluster_file) {
                (Some(objects), _) => Source::Objects(objects),
                (None, Some(file)) => Source::File(file.clone()),
                (None, None) => Source::Kubernetes(Kubernetes {
                    server: ApiServer {
                        kubeconfig: args.kubeconfig.clone(),
                        server: args.api_server.clone(),
                    },
                    no_headless: args.no_headless,
                    pace: Pace::faster(args.watch_faster),
                }),
            };
            let log = Log::begin(args.log_format)?;
            let settings = settings(args, &cli, log.logging());
            return match agent(settings, source) {
                Ok(Ended::Over | Ended::HandedOver) => Ok(Exit::Ok),
                Ok(Ended::Anew) => {
                    // The lines that wait are written first.
                    drop(log);
                    Err(anew())
                }
                Err(error) => Ok(log.fails(&error)),
            };
        }
        Verb::Flag(FlagArgs { node, lasts, reason, force, wait, strict }) => {
            let for_ms = lasts.0.map(|lasts| u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX));
            let request = |sudo_user| Request::Flag {
                node: node.clone(),
                for_ms,
                reason: reason.clone(),
                force,
                wait,
                sudo_user,
            };
            let report = caller.flag(request)?;
            print(caller.format, &report, flag::flag)?;
            warn(&report.warnings);
            if strict {
                let (findings, exit) = flag::strict(&report);
                findings.iter().for_each(|findings| say(&format!("nodefence: {findings}")));
                return Ok(exit);
            }
        }
        Verb::Unflag(UnflagArgs { node }) => {
            let request = Request::Unflag { node };
            caller.ask(&request, |report: &UnflagReport| warn(&report.warnings), tables::unflag)?;
        }
        Verb::Nodes(ref args) => return nodes(&caller.socket, caller.format, args),
        Verb::Backends => caller.list::<BackendRow>(&Request::Backends, tables::backends)?,
        Verb::Flows(FlowsArgs { node, backend, service, protocol, limit }) => {
            let limit = limit.map(|limit| limit as usize);
            let request = Request::Flows(FlowFilter { node, backend, service, protocol, limit });
            caller.ask(&request, |flows: &FlowList| warn(&flows.notes), tables::flows)?;
        }
        Verb::Counters => caller.list::<CounterRow>(&Request::Counters, tables::counters)?,
        Verb::Status(StatusArgs { ready: true, pod_uid, .. }) => {
            let asked = caller.answer::<u32>(&Request::Ready { pod_uid: pod_uid.clone() });
            asked.map_err(|error| no_answer(error, &cli.run_dir, pod_uid.as_deref()))?;
        }
        Verb::Status(StatusArgs { check, ready: false, .. }) => {
            let report = match caller.answer::<OrOff<Status>>(&Request::Status)? {
                OrOff::Runs(status) => StatusReport::from(status),
                OrOff::Off(report) => {
                    off::print_status(caller.format, &report)?;
                    return Ok(if check { Exit::Findings } else { Exit::Ok });
                }
            };
            print(caller.format, &report, |report| status::status(report, caller.format))?;
            return Ok(if check { status::check(&report.health) } else { Exit::Ok });
        }
        Verb::Audit => {
            let warnings = |report: &AuditReport| warn(&audit::audit_warnings(report));
            return caller.ask_for(&Request::Audit, warnings, audit::audit, audit::audit_exit);
        }
        Verb::Repair(RepairArgs { kinds, dry_run }) => {
            let request = Request::Repair { kinds, dry_run };
            let notes = |report: &RepairReport| warn(&report.notes);
            return caller.ask_for(&request, notes, audit::repair, audit::repair_exit);
        }
        Verb::Mode(ModeArgs { mode }) => {
            let request = Request::Mode { mode: mode.map(Mode::from), sudo_user: adjust::sudo_user() };
            match caller.answer::<OrOff<ModeReport>>(&request)? {
                OrOff::Runs(report) => {
                    warn(&report.warnings);
                    print(caller.format, &report, adjust::mode)?;
                }
                OrOff::Off(report) => off::print_status(caller.format, &report)?,
            }
        }
        Verb::LogLevel(LogLevelArgs { level }) => {
            let request = Request::LogLevel { level, sudo_user: adjust::sudo_user() };
            caller.ask(&request, quiet, adjust::log_level)?;
        }
        Verb::Off(ref args) => return off::off(&cli, args),
        Verb::On(OnArgs {}) => return off::on(&cli),
        Verb::Detach(DetachArgs { ref pin_dir }) => {
            // The lock keeps an agent from starting meanwhile, which would attach again what is being removed.
            let _lock = Lock::take(&cli.run_dir, END_IT)?;
            let TakenBack { removed, restored, not_restored } =
                take_back(&cli.run_dir, pin_dir, Owner::Other)?;
            let store = FlagStore::new(&cli.run_dir);
            // With flags left behind, the next agent would cut again as soon as it starts.
            let flags_file = store.remove()?.then(|| store.path().to_owned());
            // Nothing of ours is left to be off.
            let off = OffFile::new(&cli.run_dir);
            let off_file = off.remove()?.then(|| off.path().to_owned());
            OffFile::of_settings(&cli.run_dir).remove()?;
            ViewFile::new(&cli.run_dir).remove()?;
            PodsFile::new(&cli.run_dir).remove()?;
            remove_announcement(&cli.run_dir)?;
            // A killed agent leaves its socket behind.
            Server::remove_stale(&cli.socket())?;
            let ledgers_left = ledger::put_aside(&cli.run_dir);
            let bpffs = dataplane::in_bpffs(pin_dir).unwrap_or(true);
            let warnings = tables::nothing_pinned(&removed, pin_dir, bpffs).into_iter().collect();
            let detached = Detached { removed, restored, flags_file, off_file, ledgers_left, warnings };
            warn(&detached.warnings);
            print(cli.output, &detached, tables::detach)?;
            if let Some(error) = not_restored {
                return Err(error.context(NOT_RESTORED));
            }
        }
        Verb::Guard(GuardArgs { parent, wait, ref pin_dir }) => {
            // The signals are blocked before the log starts its thread, which inherits that.
            let ends = drain::Ends::hold().context(TAKE_SIGNALS)?;
            let log = Log::begin(LogFormat::Text)?;
            let ended = match parent {
                Some(parent) => drain::guard_child(&cli.run_dir, pin_dir, parent).map_err(Into::into),
                None => guard(&cli.run_dir, pin_dir, ends, wait),
            };
            return Ok(ended.map_or_else(|error| log.fails(&error), |()| Exit::Ok));
        }
        Verb::Doctor(DoctorArgs { code: Some(code), .. }) => {
            return explain::explain(code, cli.output, &cli.socket());
        }
        Verb::Doctor(DoctorArgs { code: None, ref interface, ref pin_dir }) => {
            return doctor::run(cli.output, interface, pin_dir.as_deref(), &cli.socket());
        }
        Verb::Crds(ref args) => crds::run(cli.output, args)?,
        Verb::Controller(ref args) => {
            let log = Log::begin(args.log_format)?;
            return Ok(controller(args).map_or_else(|error| log.fails(&error), |()| Exit::Ok));
        }
        Verb::Completions(CompletionsArgs { shell }) => {
            let mut script = Vec::new();
            let mut command = environment::with_variables(Cli::command());
            clap_complete::generate(shell, &mut command, "nodefence", &mut script);
            put(script)?;
        }
        Verb::Man(ManArgs { dir }) => man(dir.as_deref())?,
    }
    Ok(Exit::Ok)
}

fn guard(run_dir: &Path, pin_dir: &Path, ends: drain::Ends, wait: bool) -> anyhow::Result<()> {
    is_there(run_dir)?;
    own_folder(run_dir)?;
    Ok(drain::guard(run_dir, pin_dir, ends, wait)?)
}

pub(super) fn is_there(run_dir: &Path) -> anyhow::Result<()> {
    // The guard makes no run folder: it would watch a mistyped one in vain.
    anyhow::ensure!(
        run_dir.exists(),
        "run folder {}: there is none; expected the agent's --run-dir, which an agent makes, or a volume",
        run_dir.display()
    );
    Ok(())
}

fn agent(settings: Settings, source: Source) -> anyhow::Result<Ended> {
    let runtime = agent::runtime().context(START_THREADS)?;
    let ended = runtime.block_on(agent::run(settings, source));
    // A slow write in the background must not delay the end.
    runtime.shutdown_background();
    ended
}

/// Runs this very program anew in this process, with the same command line. Returns only where that fails.
fn anew() -> anyhow::Error {
    let mut typed = std::env::args_os();
    // The running program, even where another one lies in its place by now.
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = typed.next() {
        command.arg0(name);
    }
    anyhow::Error::from(command.args(typed).exec()).context(START_ANEW)
}

fn controller(args: &ControllerArgs) -> anyhow::Result<()> {
    let runtime = agent::single_runtime().context(START_CONTROLLER)?;
    let ended = runtime.block_on(controller::run(args.settings()));
    // A name server that does not answer must not delay the end.
    runtime.shutdown_background();
    ended
}

struct Caller {
    socket: PathBuf,
    format: Format,
}

impl Caller {
    /// Requests rows and prints them as a list.
    fn list<T: DeserializeOwned>(
        &self,
        request: &Request,
        table: impl FnOnce(&List<T>) -> String,
    ) -> anyhow::Result<()>
    where
        List<T>: Document,
    {
        let rows: Vec<T> = self.answer(request)?;
        print(self.format, &rows.into(), table)
    }

    fn ask<T: Document + DeserializeOwned>(
        &self,
        request: &Request,
        aside: impl FnOnce(&T),
        table: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        self.ask_for(request, aside, table, |_| Exit::Ok).map(drop)
    }

    /// As [`Caller::ask`], with an exit code that follows from the answer.
    fn ask_for<T: Document + DeserializeOwned>(
        &self,
        request: &Request,
        aside: impl FnOnce(&T),
        table: impl FnOnce(&T) -> String,
        exit: impl FnOnce(&T) -> Exit,
    ) -> anyhow::Result<Exit> {
        let answer: T = self.answer(request)?;
        aside(&answer);
        print(self.format, &answer, table)?;
        Ok(exit(&answer))
    }

    fn answer<T: DeserializeOwned>(&self, request: &Request) -> Result<T, ClientError> {
        let mut client = Client::connect(&self.socket)?;
        // `audit` and `repair` read large tables.
        if let Request::Flag { wait: true, .. } | Request::Audit | Request::Repair { .. } = request {
            client.set_patience(PATIENCE_WITH_CHALLENGE)?;
        }
        client.ask(request)
    }

    /// Sends a flag. An agent of an earlier version, which runs on while its binary is replaced, refuses the field `sudo_user`. It gets the
    /// request again without the field.
    fn flag(&self, request: impl Fn(Option<String>) -> Request) -> Result<FlagReport, ClientError> {
        let sudo_user = adjust::sudo_user();
        let answer = self.answer(&request(sudo_user.clone()));
        match answer {
            Err(ClientError::Failure(failure))
                if sudo_user.is_some() && failure.kind == ErrorKind::Invalid =>
            {
                self.answer(&request(None))
            }
            answer => answer,
        }
    }
}

fn quiet<T>(_: &T) {}

fn settings(args: &AgentArgs, cli: &Cli, log: Logging) -> Settings {
    let mut interfaces = InterfaceChoice::default();
    for name in &args.interfaces {
        if name == "auto" {
            interfaces.auto = true;
        } else if !interfaces.names.contains(name) {
            interfaces.names.push(name.clone());
        }
    }
    let mut options = dataplane::Options {
        pin_dir: args.pin_dir.clone(),
        max_backends: args.max_backends,
        xdp: match args.xdp {
            XdpArg::Off => dataplane::XdpChoice::Off,
            XdpArg::Native => dataplane::XdpChoice::Native,
            XdpArg::Generic => dataplane::XdpChoice::Generic,
        },
        tc: match args.tc {
            TcArg::Auto => dataplane::TcChoice::Auto,
            TcArg::Clsact => dataplane::TcChoice::Clsact,
        },
        log_cuts: args.log_cuts,
        ..dataplane::Options::default()
    };
    options.config.icmp_per_second = args.icmp_per_second;
    Settings {
        allow_empty: args.allow_empty,
        interfaces,
        node: args.node.clone(),
        mode: args.mode.into(),
        auto: args.auto(),
        auto_limit: args.auto_limit(),
        shares: args.kubernetes,
        max_view_age: args.max_view_age,
        force: args.force,
        answer: match args.answer {
            AnswerArg::Refuse => Answer::Refuse,
            AnswerArg::Drop => Answer::Drop,
        },
        proxy: match args.proxy {
            ProxyArg::Auto => proxy::ProxyChoice::Auto,
            ProxyArg::Ipvs => proxy::ProxyChoice::Ipvs,
            ProxyArg::Iptables => proxy::ProxyChoice::Iptables,
            ProxyArg::Nftables => proxy::ProxyChoice::Nftables,
            ProxyArg::None => proxy::ProxyChoice::None,
        },
        conntrack_zone: args.conntrack_zone,
        guard: match args.guard {
            GuardArg::Child => GuardKind::Child,
            GuardArg::External => GuardKind::External,
        },
        audit: AuditSettings {
            fault_after: args.fault_after,
            repair: args.repair.iter().copied().collect(),
            excluded: args.excluded.clone(),
        },
        compare_every: args.compare_every,
        view_store_every: args.view_store_every,
        rescue_per_second: args.rescue_per_second,
        options,
        run_dir: cli.run_dir.clone(),
        socket: cli.socket(),
        http: args.http,
        pod_uid: args.pod_uid.clone(),
        vacant: args.vacant.unwrap_or(VACANT),
        take_over: args.take_over,
        log,
    }
}

fn man(dir: Option<&Path>) -> anyhow::Result<()> {
    let command = environment::with_variables(Cli::command());
    match dir {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            put(page)?;
        }
        Some(dir) => {
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
            let mut command = command.disable_help_subcommand(true);
            command.build();
            let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
            for page in std::iter::once(&command).chain(verbs) {
                // By default the footer of a verb's page names only the verb, as if the verb were the program.
                clap_mangen::Man::new(page.clone())
                    .source(concat!("nodefence ", env!("CARGO_PKG_VERSION")))
                    .generate_to(dir)
                    .with_context(|| format!("cannot write into {}", dir.display()))?;
            }
        }
    }
    Ok(())
}
