//! The inbox of the thread `verdicts`. A sender waits for nobody: the lock is held only while a message is put in.
//!
//! The number of messages that wait is bounded. At most [`REQUESTS`] requests wait. Of messages on the same [`Subject`] only the newest
//! waits. Of the others `tables` and `store` send one for each plan or save that they were given, and comparisons send one in ten minutes.

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
    enforce::{Change, ClaimSource, Input, NewClaim, NewView, RequestResult},
};

/// Requests that wait to be looked at, at most: a few microseconds are enough for each.
const REQUESTS: usize = 256;

/// A request that is answered.
#[derive(Debug)]
pub(super) enum Command {
    /// A claim on a node.
    Claim(NodeName, Change),
    /// Another agent takes over.
    HandOver,
}

/// The things that `verdicts` gets once the tables are open.
pub(super) struct Opened {
    /// The node that this agent runs on.
    pub(super) own: NodeName,
    /// Writes the maps from now on.
    pub(super) writer: Box<dyn Writer>,
    /// Where `verdicts` puts what others are to know and to do.
    pub(super) outlets: Outlets,
}

/// A message to `verdicts`.
pub(super) enum Message {
    /// An input that needs no answer.
    Tell(Input),
    /// A request, and where its answer goes.
    Ask(Command, oneshot::Sender<RequestResult>),
    /// The tables are open: from now on there is more to write than renewals.
    Open(Box<Opened>),
    /// No device reads maps of another size any more.
    ForgetOld,
    /// The sender is told once all messages before this one are carried out.
    Settle(oneshot::Sender<()>),
    /// The sender is told once all claims of messages before this one are saved, or could not be.
    Saved(oneshot::Sender<()>),
    /// All verdicts are renewed once more, and nothing is done after that.
    End,
}

/// The subject of a message. A message makes an older one on the same subject void, where that has not been taken yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Subject {
    View,
    /// The claim of one source on a node, where nobody waits for an answer.
    Claim(NodeName, ClaimSource),
    /// All that one source claims.
    Claims(ClaimSource),
    /// All objects that flag nodes.
    Objects,
    /// The settings for all agents.
    Shared,
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
            Message::Tell(Input::Objects(_)) => Some(Self::Objects),
            Message::Tell(Input::Shared(_)) => Some(Self::Shared),
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
    /// Too many requests wait.
    #[error("{REQUESTS} requests wait already; nothing was changed, try again")]
    Full,
    /// The thread that would answer has ended.
    #[error("the agent is ending; try again once another one runs")]
    Ended,
    /// The thread that was asked has not answered for long.
    #[error("the thread that is to answer stands still; look at the agent's log")]
    StandsStill,
}

/// The messages that `verdicts` has not taken yet.
#[derive(Default)]
pub(super) struct Inbox {
    queue: Mutex<Queue>,
    rung: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Messages by their numbers, which go up.
    messages: BTreeMap<u64, Message>,
    /// The number of the newest message on each subject.
    newest: HashMap<Subject, u64>,
    last: u64,
    requests: usize,
    ended: bool,
}

impl Queue {
    /// Puts a message behind all others, even where it makes an older one void: messages that came between the two are taken first.
    fn push(&mut self, message: Message) {
        self.last += 1;
        // Whoever waits for an answer was promised that messages before it are carried out, and an agent that takes over was
        // promised all claims. So later messages make no earlier ones void, but for views.
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
        // The message is dropped. Whoever waits for its answer learns by this that there is none.
        if queue.ended {
            return;
        }
        queue.push(message);
        drop(queue);
        self.rung.notify_one();
    }

    /// Sends an input that needs no answer, in place of an older one that it makes void.
    pub(super) fn tell(&self, input: Input) {
        self.post(Message::Tell(input));
    }

    /// Sends another view, in place of one that has not been taken yet. `flags`: what the view's source flags, where that was read anew.
    pub(super) fn view(&self, view: Arc<NewView>, flags: Option<Vec<(NodeName, NewClaim)>>) {
        let older = self.queue().take_view();
        let (view, older) = match older {
            Some(Message::Tell(Input::View { view: skipped, flags })) => (view.in_place_of(&skipped), flags),
            _ => (view, None),
        };
        self.tell(Input::View { view, flags: flags.or(older) });
    }

    /// Sends a request.
    ///
    /// # Errors
    /// Where there will be no answer.
    pub(super) fn ask(&self, asked: Command) -> Result<oneshot::Receiver<RequestResult>, NoAnswer> {
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

    /// Tells that the tables are open.
    pub(super) fn open(&self, opened: Opened) {
        self.post(Message::Open(Box::new(opened)));
    }

    /// Tells that no device reads maps of another size any more.
    pub(super) fn forget_old(&self) {
        self.post(Message::ForgetOld);
    }

    /// A receiver that is told once all messages before this call are carried out, as far as they can be now. It is closed where the
    /// thread ends before.
    pub(super) fn settled(&self) -> oneshot::Receiver<()> {
        let (settled, receiver) = oneshot::channel();
        self.post(Message::Settle(settled));
        receiver
    }

    /// A receiver that is told once all claims are saved, or could not be. It is closed where the thread ends before.
    pub(super) fn saved(&self) -> oneshot::Receiver<()> {
        let (saved, receiver) = oneshot::channel();
        self.post(Message::Saved(saved));
        receiver
    }

    /// Ends the thread once it has renewed all verdicts.
    pub(super) fn end(&self) {
        self.post(Message::End);
    }

    /// For `verdicts` alone: the next message.
    pub(super) fn take(&self) -> Option<Message> {
        let mut queue = self.queue();
        let message = queue.pop()?;
        queue.requests -= usize::from(matches!(message, Message::Ask(..)));
        Some(message)
    }

    /// For `verdicts` alone: waits for a message, for `longest` at most.
    pub(super) fn wait(&self, longest: Duration) {
        let queue = self.queue();
        let waited = self.rung.wait_timeout_while(queue, longest, |queue| queue.messages.is_empty());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// For `verdicts` alone: no message is taken any more.
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

    fn raise(source: ClaimSource) -> Change {
        let claim =
            NewClaim { source, by: "".into(), reason: "".into(), evidence: None, lasts: None, until: None };
        Change::Raise { claim, force: false }
    }

    /// However often others send the same while nothing is taken.
    #[test]
    fn what_is_void_does_not_wait() {
        let inbox = Inbox::default();
        let hung = || Change::Withdraw(ClaimSource::Hung);
        let replace = |source, claims| Input::Replace { source, claims };
        let cli = |claims: usize| {
            let Change::Raise { claim, .. } = raise(ClaimSource::Cli) else { unreachable!() };
            replace(ClaimSource::Cli, vec![("a".into(), claim); claims])
        };
        for _ in 0..3 {
            inbox.tell(claim("a", raise(ClaimSource::Hung)));
            inbox.tell(claim("b", raise(ClaimSource::Hung)));
            inbox.tell(cli(1));
            inbox.tell(Input::Routes { own_attached: true });
        }
        inbox.tell(Input::Tick);
        inbox.tell(claim("a", raise(ClaimSource::Unreachable)));
        inbox.tell(replace(ClaimSource::File, Vec::new()));
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
            claim("b", raise(ClaimSource::Hung)),
            Input::Tick,
            claim("a", raise(ClaimSource::Unreachable)),
            replace(ClaimSource::File, Vec::new()),
            cli(2),
            claim("a", hung()),
            Input::Tick,
            Input::Routes { own_attached: false },
        ];
        assert_eq!(told, expected.map(|input| format!("{input:?}")));
        // A message that was taken makes none void, nor is it made void.
        inbox.tell(claim("a", hung()));
        assert_eq!(taken().count(), 1);
        inbox.tell(claim("a", hung()));
        inbox.tell(claim("a", raise(ClaimSource::Hung)));
        assert_eq!(taken().count(), 1);
        // Claims that came before a hand-over are handed over.
        inbox.tell(claim("a", raise(ClaimSource::Hung)));
        let _answer = inbox.ask(Command::HandOver).unwrap();
        for _ in 0..3 {
            inbox.tell(claim("a", raise(ClaimSource::Hung)));
        }
        assert_eq!(taken().count(), 3);
    }

    #[test]
    fn requests_are_bounded_and_learn_that_nobody_answers() {
        let inbox = Inbox::default();
        let ask = || inbox.ask(Command::Claim("b".into(), Change::Withdraw(ClaimSource::Cli)));
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
