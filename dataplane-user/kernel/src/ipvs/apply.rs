use super::{Change, ChangeOutcome, Error, Ipvs, codec::Request};

/// Number of requests that are sent before their acknowledgements are read. So many acknowledgements fit the socket's
/// receive buffer.
const BATCH: usize = 64;

fn request(change: &Change) -> Request<'_> {
    match change {
        Change::NewService(service) => Request::NewService(service),
        Change::SetService(service) => Request::SetService(service),
        Change::DeleteService(key) => Request::DeleteService(key),
        Change::NewDestination(key, destination) => Request::NewDestination(key, destination),
        Change::SetDestination(key, destination) => Request::SetDestination(key, destination),
        Change::DeleteDestination(key, address) => Request::DeleteDestination(key, *address),
    }
}

/// The outcome of a change, by the kernel's error number (`ip_vs_genl_set_cmd`, ip_vs_ctl.c).
fn outcome(change: &Change, errno: i32) -> ChangeOutcome {
    let of_service =
        matches!(change, Change::NewService(_) | Change::SetService(_) | Change::DeleteService(_));
    match errno {
        0 => ChangeOutcome::Done,
        libc::EEXIST => ChangeOutcome::Exists,
        libc::ESRCH => ChangeOutcome::NoService,
        // For a change of a service, ENOENT means that the scheduler or persistence engine does not exist.
        libc::ENOENT if !of_service => ChangeOutcome::NoDestination,
        other => ChangeOutcome::Refused(other),
    }
}

/// The outcomes of several changes.
#[derive(Debug)]
#[must_use = "changes can fail one by one"]
pub struct Applied {
    /// One outcome for each change, in the order of the changes.
    pub outcomes: Vec<ChangeOutcome>,
    /// Why some outcomes are [`ChangeOutcome::Unknown`], or why all changes were refused.
    pub failure: Option<Error>,
}

impl Ipvs {
    /// Makes changes in the given order, 64 in flight. The kernel takes its one IPVS lock for each change. A caller that
    /// wants to leave others more of that lock hands over fewer changes at a time.
    ///
    /// Refused changes and lost acknowledgements do not stop the rest. A failed socket or a missing privilege does.
    pub fn apply(&mut self, changes: &[Change]) -> Applied {
        const REQUEST: &str = "change";
        let mut outcomes = vec![ChangeOutcome::Unknown; changes.len()];
        let mut failure = None;
        for (batch, places) in changes.chunks(BATCH).zip(outcomes.chunks_mut(BATCH)) {
            let mut requests = Vec::new();
            for change in batch {
                let sequence = self.channel.next_sequence();
                requests.extend_from_slice(&request(change).encode(self.family, sequence));
            }
            let mut forbidden = false;
            let sent = self.channel.pipeline(&requests, batch.len(), |place, errno| {
                forbidden |= errno == libc::EPERM;
                places[place] = outcome(&batch[place], errno);
            });
            match sent {
                _ if forbidden => failure = Some(Error::Permission),
                Ok(()) => continue,
                // Outcomes whose acknowledgements were lost stay unknown; the next batches go on.
                Err(source) if source.raw_os_error() == Some(libc::ENOBUFS) => {
                    failure = Some(Error::Io { request: REQUEST, source });
                    continue;
                }
                Err(source) => failure = Some(Error::Io { request: REQUEST, source }),
            }
            break;
        }
        Applied { outcomes, failure }
    }
}
