//! The thread that owns verdicts. It drives the [`Enforcer`]. It alone writes nodes' entries and exemptions. It does map writes and
//! nothing else: no disk, log or socket holds it up.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        mpsc::{SyncSender, TrySendError},
    },
    thread::JoinHandle,
    time::Duration,
};

use nodefence_common::VERDICT_LIFETIME_NS;
use tokio::sync::oneshot;

use super::{
    beat::Beat,
    chain::chain,
    inbox::{Command, Inbox, Message, Opened},
    lines::Line,
    outlets::Outlets,
    slot::Slot,
    store::StoreWork,
    threads::{Crew, Priority},
    watchdog::Watchdog,
    writer::Writer,
};
use crate::{
    cluster::NodeName,
    enforce::{self, Enforcer, Epoch, Input, Output, RequestResult, Ticket},
    flags::now,
};

/// The parts of the agent that the thread gets at its beginning.
pub(super) struct Beginning {
    /// Knows what an earlier agent left.
    pub(super) enforcer: Enforcer,
    /// Renews what an earlier agent left.
    pub(super) writer: Box<dyn Writer>,
    /// Takes what is to be saved.
    pub(super) store: Arc<Slot<StoreWork>>,
    /// Takes what is to be said in the log.
    pub(super) lines: SyncSender<Line>,
    /// Learns where the thread ends though the agent does not.
    pub(super) crew: Crew,
}

/// The thread `verdicts`.
pub(super) struct Verdicts {
    pub(super) inbox: Arc<Inbox>,
    pub(super) beat: Arc<Beat>,
    thread: Option<JoinHandle<()>>,
    crew: Crew,
    /// Ends the process where the thread hangs, also at the agent's end: it goes on until the thread has ended.
    watchdog: Option<Watchdog>,
}

impl Verdicts {
    /// Begins to renew what an earlier agent left. All else waits until the tables are open ([`Inbox::open`]).
    pub(super) fn start(beginning: Beginning) -> std::io::Result<Self> {
        let inbox = Arc::new(Inbox::default());
        let beat = Arc::new(Beat::new(now().mono));
        let Beginning { enforcer, writer, store, lines, crew } = beginning;
        let driver = Driver {
            enforcer,
            writer,
            store,
            lines,
            lost: 0,
            inbox: Arc::clone(&inbox),
            beat: Arc::clone(&beat),
            outlets: None,
            waiting: HashMap::new(),
            tickets: 0,
            settling: Vec::new(),
            saving: Vec::new(),
            begun: 0,
            failed: false,
            troubled: false,
            published: None,
            announced: Announced::default(),
            ending: false,
        };
        // This thread has precedence because the threads that rescue and drain have it: on one processor they would hold up the
        // thread that they follow.
        let thread = crew.thread("verdicts", Priority::First, move || {
            driver.run();
            Ok(())
        })?;
        Ok(Self { inbox, beat, thread: Some(thread), crew, watchdog: None })
    }

    /// Has the watchdog end the process where the thread hangs.
    ///
    /// # Errors
    /// Where the kernel has no room for the watchdog's threads.
    pub(super) fn watched(mut self) -> std::io::Result<Self> {
        self.watchdog = Watchdog::start(Arc::clone(&self.beat), &self.crew)?;
        Ok(self)
    }
}

impl Drop for Verdicts {
    /// Verdicts are renewed once more, so that the next agent has their whole lifetime. Nothing is written any more once this returns.
    fn drop(&mut self) {
        // The agent ends with this thread.
        self.crew.end();
        self.inbox.end();
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
        drop(self.watchdog.take());
    }
}

/// The parts of the last snapshot that decide who is told of the next one.
#[derive(Default)]
struct Announced {
    view: Option<Epoch>,
    /// The own node is claimed: its pods' devices are to be attached.
    own: bool,
}

struct Driver {
    enforcer: Enforcer,
    writer: Box<dyn Writer>,
    store: Arc<Slot<StoreWork>>,
    lines: SyncSender<Line>,
    /// Lines of the log that did not fit.
    lost: u64,
    inbox: Arc<Inbox>,
    beat: Arc<Beat>,
    /// Set once the tables are open.
    outlets: Option<Open>,
    /// Those who wait for an answer, by ticket.
    waiting: HashMap<u64, oneshot::Sender<RequestResult>>,
    tickets: u64,
    /// Those who wait until all is carried out.
    settling: Vec<oneshot::Sender<()>>,
    /// Those who wait until all claims are saved, by the number of the save that has them.
    saving: Vec<(u64, oneshot::Sender<()>)>,
    /// When (CLOCK_MONOTONIC, ns) this pass began.
    begun: u64,
    /// A write failed since verdicts were last renewed.
    failed: bool,
    /// Some verdict could not be written, by the last snapshot.
    troubled: bool,
    /// The snapshot that was made known in this pass.
    published: Option<Arc<enforce::World>>,
    announced: Announced,
    ending: bool,
}

struct Open {
    own: NodeName,
    outlets: Outlets,
}

impl Driver {
    fn run(mut self) {
        loop {
            self.pass();
            if self.ending {
                break;
            }
            let left = self.enforcer.deadline().saturating_sub(now().mono);
            self.inbox.wait(Duration::from_nanos(left));
            self.drain_lives();
            self.take_messages();
            self.enforcer.handle(Input::Tick, now());
        }
        self.inbox.close();
        if let Some(last) = self.enforcer.last_save() {
            self.store.post(|work| work.save = Some(last));
        }
        if let Some(open) = &self.outlets {
            open.outlets.tables.post(|work| work.end = true);
        }
    }

    /// Does all that is to be done now.
    fn pass(&mut self) {
        self.begun = now().mono;
        loop {
            let now = now();
            self.beat.live(now.mono);
            self.enforcer.clock(now);
            let Some(output) = self.enforcer.poll() else { break };
            self.carry_out(output);
            // A flag does not wait until a thousand others are renewed.
            self.take_messages();
        }
        if let Some(epoch) = self.enforcer.written() {
            self.beat.set_tables(epoch.0);
        }
        self.beat.set_confirmed(self.enforcer.confirmed_at());
        if let Some(world) = self.published.take() {
            self.beat.set_done(world.number);
            self.tell(&world);
        }
        let saved = self.saving.extract_if(.., |(serial, _)| self.enforcer.is_saved(*serial));
        self.settling.extend(saved.map(|(_, saved)| saved));
        for settled in self.settling.drain(..) {
            let _gone = settled.send(());
        }
    }

    fn take_messages(&mut self) {
        while let Some(message) = self.inbox.take() {
            match message {
                Message::Tell(input) => self.enforcer.handle(input, now()),
                Message::Ask(asked, answer) => {
                    self.tickets += 1;
                    let ticket = Ticket(self.tickets);
                    self.waiting.insert(self.tickets, answer);
                    let input = match asked {
                        Command::Claim(node, change) => Input::Claim { node, change, ticket: Some(ticket) },
                        Command::HandOver => Input::HandOver(ticket),
                    };
                    self.enforcer.handle(input, now());
                }
                Message::Open(opened) => {
                    let Opened { own, writer, outlets } = *opened;
                    self.writer = writer;
                    self.enforcer.know_own(own.clone());
                    // The drain begins now.
                    let now = now();
                    self.enforcer.handle(Input::DrainAlive(now.mono), now);
                    self.outlets = Some(Open { own, outlets });
                    self.prolong(now.mono.saturating_add(VERDICT_LIFETIME_NS));
                }
                Message::ForgetOld => self.writer.forget_old(),
                Message::Settle(settled) => self.settling.push(settled),
                Message::Saved(saved) => self.saving.push((self.enforcer.serial(), saved)),
                Message::End => {
                    self.ending = true;
                    self.enforcer.handle(Input::Renew, now());
                }
            }
        }
    }

    /// Tells of the drain's last sign of life. Before its first one, what an earlier agent drained holds as long as if the drain had given
    /// a sign at the start: a start that waits for its view must not hold it for ever.
    fn drain_lives(&mut self) {
        let at = self.beat.drain();
        if at > 0 {
            self.enforcer.handle(Input::DrainAlive(at), now());
        }
    }

    fn carry_out(&mut self, output: Output) {
        let error = match &output {
            Output::Publish(world) => {
                self.publish(world);
                return;
            }
            Output::Exempt(key) => self.writer.exempt(key).err().map(chain),
            Output::Except(key) => self.writer.except(key).err().map(chain),
            Output::Node(index, entry) => {
                self.writer.write(*index, entry).err().map(|error| error.to_string())
            }
            Output::Unexempt(key) => self.writer.unexempt(key).err().map(chain),
            Output::Lease(until) => {
                self.lease(*until);
                return;
            }
            Output::Tables(plan) => {
                if let Some(open) = &self.outlets {
                    open.outlets.tables.post(|work| work.plan = Some(plan.clone()));
                }
                return;
            }
            Output::Save(serial, saved) => {
                self.store.post(|work| work.save = Some((*serial, saved.clone())));
                return;
            }
            Output::Reply(ticket, answer) => {
                if let Some(waiting) = self.waiting.remove(&ticket.0) {
                    // The requester may have gone.
                    let _gone = waiting.send(answer.clone());
                }
                return;
            }
            Output::Record(event) => {
                self.record(Line::Event(event.clone()));
                return;
            }
        };
        if let Some(error) = error {
            self.failed = true;
            self.enforcer.failed(output, error.into(), now());
        }
    }

    fn publish(&mut self, world: &Arc<enforce::World>) {
        if let Some(open) = &self.outlets {
            open.outlets.world.change(|all| all.take(Arc::clone(world)));
        }
        self.troubled = !world.failed.is_empty();
        self.published = Some(Arc::clone(world));
    }

    /// Tells those who follow what is in the maps.
    fn tell(&mut self, world: &enforce::World) {
        let Some(open) = &self.outlets else { return };
        let Outlets { world: all, bells, .. } = &open.outlets;
        let announced = Announced {
            view: world.view.as_ref().map(|view| view.epoch),
            own: all.now().is_claimed(&open.own),
        };
        bells.ring();
        if announced.view != self.announced.view {
            bells.view_changed.notify_one();
        }
        if announced.own != self.announced.own {
            bells.looks.ask();
        }
        self.announced = announced;
    }

    /// Renews the lease after verdicts were renewed: what is drained from IPVS holds as long as verdicts do. The lease is renewed whatever
    /// failed: one node's failure must not end what is done about the rest.
    fn lease(&mut self, until: u64) {
        if !std::mem::take(&mut self.failed) && !self.troubled {
            self.beat.renew(self.begun);
        }
        self.prolong(until);
    }

    fn prolong(&mut self, until: u64) {
        // A lapsed lease stays lapsed while it is an earlier agent's, and once something may be drained: the guard is restoring.
        let anew = self.outlets.is_some() && !self.beat.drains();
        if let Err(error) = self.writer.prolong(until, anew) {
            self.record(Line::Lease(chain(error)));
        }
    }

    /// Hands a line to the log. Where there are more lines than can be put into words, some are lost.
    fn record(&mut self, line: Line) {
        if self.lost > 0 && self.lines.try_send(Line::Lost(self.lost)).is_ok() {
            self.lost = 0;
        }
        if let Err(TrySendError::Full(_)) = self.lines.try_send(line) {
            self.lost += 1;
            self.beat.lose_line();
        }
    }
}

#[cfg(test)]
mod tests;
