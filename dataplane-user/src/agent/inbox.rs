//! What the owner of verdicts is told. Whoever tells it something waits for nobody: the lock is held for as long as a message takes to be put down.
//!
//! How much can wait is bounded: requests by their number, and what a newer message makes void by its [`Subject`], however often it is told. Of the rest `tables`
//! and `store` tell one for each plan or save that they were given, and comparisons one in ten minutes.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use thiserror::Error;
use tokio::sync::oneshot;

use super::{outlets::Outlets, writer::Writer};
use crate::{
    cluster::NodeName,
    enforce::{Change, Input, NewClaim, NewView, Outcome, Source},
};

/// Requests that wait to be looked at, at most: a few microseconds are enough for each.
const REQUESTS: usize = 256;

/// Something to be answered.
#[derive(Debug)]
pub(super) enum Command {
    /// A claim on a node.
    Claim(NodeName, Change),
    /// Another agent takes over.
    HandOver,
}

/// The tables are open.
pub(super) struct Opened {
    /// The node that this agent runs on.
    pub(super) own: NodeName,
    /// Writes from now on.
    pub(super) writer: Box<dyn Writer>,
    /// Where what follows goes.
    pub(super) outlets: Outlets,
}

/// One thing that it is told.
pub(super) enum Message {
    /// What needs no answer.
    Tell(Input),
    /// What does.
    Ask(Command, oneshot::Sender<Outcome>),
    /// From now on there is more to write than renewals.
    Open(Box<Opened>),
    /// No device reads maps of another size any more.
    ForgetOld,
    /// Whoever asks is told once all that was told before is carried out.
    Settle(oneshot::Sender<()>),
    /// Whoever asks is told once all claims are saved that were told before, or could not be.
    Saved(oneshot::Sender<()>),
    /// All verdicts are renewed once more, and nothing is done after that.
    End,
}

/// What a message is the newest word on: an older one that has not been taken yet says nothing any more.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Subject {
    View,
    /// What one source claims of a node, where nobody waits for an answer.
    Claim(NodeName, Source),
    /// All that one source claims.
    Claims(Source),
    Confirmed,
    Routes,
    Replacement,
    Mode,
}

impl Subject {
    fn of(message: &Message) -> Option<Self> {
        match message {
            Message::Tell(Input::View { .. }) => Some(Self::View),
            Message::Tell(Input::Claim { node, change, ticket: None }) => {
                let source = match change {
                    Change::Raise { claim, .. } => &claim.source,
                    Change::Withdraw(source) => source,
                };
                Some(Self::Claim(node.clone(), source.clone()))
            }
            Message::Tell(Input::Replace { source, .. }) => Some(Self::Claims(source.clone())),
            Message::Tell(Input::Confirmed(_)) => Some(Self::Confirmed),
            Message::Tell(Input::Routes { .. }) => Some(Self::Routes),
            Message::Tell(Input::Replacement(_)) => Some(Self::Replacement),
            Message::Tell(Input::Mode(..)) => Some(Self::Mode),
            _ => None,
        }
    }
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(super) enum NoAnswer {
    /// Too many ask.
    #[error("{REQUESTS} requests wait already; nothing was changed, try again")]
    Full,
    /// It has ended.
    #[error("the agent is ending; try again once another one runs")]
    Ended,
    /// Who was asked has not answered for long.
    #[error("the thread that is to answer stands still; look at the agent's log")]
    StandsStill,
}

/// The messages that it has not taken yet.
#[derive(Default)]
pub(super) struct Inbox {
    queue: Mutex<Queue>,
    rung: Condvar,
}

#[derive(Default)]
struct Queue {
    /// By their numbers, which go up.
    messages: BTreeMap<u64, Message>,
    /// The number of the one on each subject.
    newest: HashMap<Subject, u64>,
    last: u64,
    requests: usize,
    ended: bool,
}

impl Queue {
    /// Behind all others: what was told between an older one and this one comes before it.
    fn push(&mut self, message: Message) {
        self.last += 1;
        // Whoever waits for an answer was promised what was told before, and a successor all claims.
        if matches!(message, Message::Ask(..) | Message::Settle(_) | Message::Saved(_) | Message::End) {
            self.newest.retain(|subject, _| *subject == Subject::View);
        }
        let subject = Subject::of(&message);
        if let Some(void) = subject.and_then(|subject| self.newest.insert(subject, self.last)) {
            self.messages.remove(&void);
        }
        self.messages.insert(self.last, message);
    }

    fn pop(&mut self) -> Option<Message> {
        let (number, message) = self.messages.pop_first()?;
        if let Some(subject) = Subject::of(&message)
            && self.newest.get(&subject) == Some(&number)
        {
            self.newest.remove(&subject);
        }
        Some(message)
    }

    fn take_view(&mut self) -> Option<Message> {
        let number = self.newest.remove(&Subject::View)?;
        self.messages.remove(&number)
    }
}

impl Inbox {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, message: Message) {
        let mut queue = self.queue();
        // Whoever waits for an answer learns from the message's end that there is none.
        if queue.ended {
            return;
        }
        queue.push(message);
        drop(queue);
        self.rung.notify_one();
    }

    /// Tells it something that needs no answer, in place of what that makes void.
    pub(super) fn tell(&self, input: Input) {
        self.post(Message::Tell(input));
    }

    /// Gives it another view, in place of one that it has not taken yet. `flags`: what its source flags, where that was read anew.
    pub(super) fn view(&self, view: Arc<NewView>, flags: Option<Vec<(NodeName, NewClaim)>>) {
        let older = self.queue().take_view();
        let (view, older) = match older {
            Some(Message::Tell(Input::View { view: skipped, flags })) => (view.in_place_of(&skipped), flags),
            _ => (view, None),
        };
        self.tell(Input::View { view, flags: flags.or(older) });
    }

    /// Asks it for something.
    ///
    /// # Errors
    /// Where there will be no answer.
    pub(super) fn ask(&self, asked: Command) -> Result<oneshot::Receiver<Outcome>, NoAnswer> {
        let (answer, answered) = oneshot::channel();
        {
            let mut queue = self.queue();
            if queue.ended {
                return Err(NoAnswer::Ended);
            }
            if queue.requests >= REQUESTS {
                return Err(NoAnswer::Full);
            }
            queue.requests += 1;
        }
        self.post(Message::Ask(asked, answer));
        Ok(answered)
    }

    /// The tables are open.
    pub(super) fn open(&self, opened: Opened) {
        self.post(Message::Open(Box::new(opened)));
    }

    /// No device reads maps of another size any more.
    pub(super) fn forget_old(&self) {
        self.post(Message::ForgetOld);
    }

    /// For whoever waits until all that was told before is carried out, as far as it can be now. Closed where it ends before.
    pub(super) fn settled(&self) -> oneshot::Receiver<()> {
        let (settled, receiver) = oneshot::channel();
        self.post(Message::Settle(settled));
        receiver
    }

    /// For whoever waits until all claims are saved, or could not be. Closed where it ends before.
    pub(super) fn saved(&self) -> oneshot::Receiver<()> {
        let (saved, receiver) = oneshot::channel();
        self.post(Message::Saved(saved));
        receiver
    }

    /// Ends it once it has renewed all verdicts.
    pub(super) fn end(&self) {
        self.post(Message::End);
    }

    /// For its thread alone: the next message.
    pub(super) fn take(&self) -> Option<Message> {
        let mut queue = self.queue();
        let message = queue.pop()?;
        queue.requests -= usize::from(matches!(message, Message::Ask(..)));
        Some(message)
    }

    /// For its thread alone: waits for a message, at most so long.
    pub(super) fn wait(&self, longest: Duration) {
        let queue = self.queue();
        let waited = self.rung.wait_timeout_while(queue, longest, |queue| queue.messages.is_empty());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// For its thread alone: nothing is taken any more.
    pub(super) fn close(&self) {
        let mut queue = self.queue();
        queue.ended = true;
        queue.newest.clear();
        let left = std::mem::take(&mut queue.messages);
        drop(queue);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(node: &str, change: Change) -> Input {
        Input::Claim { node: node.into(), change, ticket: None }
    }

    fn raise(source: Source) -> Change {
        let claim =
            NewClaim { source, by: "".into(), reason: "".into(), evidence: None, lasts: None, until: None };
        Change::Raise { claim, force: false }
    }

    /// However often its thread's peers tell it the same, while it does not take anything.
    #[test]
    fn what_is_void_does_not_wait() {
        let inbox = Inbox::default();
        let hung = || Change::Withdraw(Source::Hung);
        let replace = |source, claims| Input::Replace { source, claims };
        let cli = |claims: usize| {
            let Change::Raise { claim, .. } = raise(Source::Cli) else { unreachable!() };
            replace(Source::Cli, vec![("a".into(), claim); claims])
        };
        for _ in 0..3 {
            inbox.tell(claim("a", raise(Source::Hung)));
            inbox.tell(claim("b", raise(Source::Hung)));
            inbox.tell(cli(1));
            inbox.tell(Input::Routes { own_attached: true });
        }
        inbox.tell(Input::Tick);
        inbox.tell(claim("a", raise(Source::Unreachable)));
        inbox.tell(replace(Source::File, Vec::new()));
        inbox.tell(cli(2));
        inbox.tell(claim("a", hung()));
        inbox.tell(Input::Tick);
        inbox.tell(Input::Routes { own_attached: false });
        let taken = || std::iter::from_fn(|| inbox.take());
        let told: Vec<String> = taken()
            .map(|message| match message {
                Message::Tell(input) => format!("{input:?}"),
                _ => unreachable!(),
            })
            .collect();
        let expected = [
            claim("b", raise(Source::Hung)),
            Input::Tick,
            claim("a", raise(Source::Unreachable)),
            replace(Source::File, Vec::new()),
            cli(2),
            claim("a", hung()),
            Input::Tick,
            Input::Routes { own_attached: false },
        ];
        assert_eq!(told, expected.map(|input| format!("{input:?}")));
        // What was taken makes nothing void, nor is it made so.
        inbox.tell(claim("a", hung()));
        assert_eq!(taken().count(), 1);
        inbox.tell(claim("a", hung()));
        inbox.tell(claim("a", raise(Source::Hung)));
        assert_eq!(taken().count(), 1);
        // What was told before a hand-over is handed over.
        inbox.tell(claim("a", raise(Source::Hung)));
        let _answer = inbox.ask(Command::HandOver).unwrap();
        for _ in 0..3 {
            inbox.tell(claim("a", raise(Source::Hung)));
        }
        assert_eq!(taken().count(), 3);
    }

    #[test]
    fn requests_are_bounded_and_learn_that_nobody_answers() {
        let inbox = Inbox::default();
        let ask = || inbox.ask(Command::Claim("b".into(), Change::Withdraw(Source::Cli)));
        let mut first = ask().unwrap();
        for _ in 1..REQUESTS {
            ask().unwrap();
        }
        assert_eq!(ask().unwrap_err(), NoAnswer::Full);
        inbox.tell(Input::Tick);
        assert!(matches!(inbox.take(), Some(Message::Ask(..))));
        assert!(first.try_recv().is_err());
        let mut last = ask().unwrap();
        inbox.close();
        assert_eq!(last.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert!(inbox.take().is_none());
        // Nobody will take it.
        inbox.tell(Input::Tick);
        assert!(inbox.take().is_none());
        assert_eq!(ask().unwrap_err(), NoAnswer::Ended);
    }
}
