//! The word of the settings in the API server: whether they turn the agent off. It is followed for as long as the process lives, and kept in a
//! file, so that an agent that starts while the API server is away is off where the last one was.

use std::{future::Future, path::Path, time::Duration};

use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    agent::threads::Crew,
    off::{Off, OffFile},
    report::OffRow,
    source::{Kubernetes, SettingsEnd, SettingsNow},
};

/// How long a start waits for the settings before it goes by what is kept. What an earlier agent cut lapses 3 s after its end.
const FIRST: Duration = Duration::from_secs(1);
/// How long to wait before the file is tried again.
const AGAIN: Duration = Duration::from_secs(10);
/// How long a start waits for a program or a disk that gives credentials.
const OPENS: Duration = Duration::from_secs(30);
/// How long to wait before it is tried again to read how the API server is reached.
const REREAD: Duration = Duration::from_secs(30);

/// Begins to follow the settings. Returns whether they turn the agent off, and the end for all else that reads them. Waits a moment for the first list.
/// `held`: whether this process has the lock of the run folder.
///
/// # Errors
/// Where it cannot be read how the API server is reached.
pub(in crate::agent) async fn follow(
    kubernetes: &Kubernetes,
    run_dir: &Path,
    crew: &Crew,
    held: watch::Receiver<bool>,
) -> anyhow::Result<(watch::Receiver<bool>, SettingsEnd)> {
    let end = in_time(kubernetes, open(kubernetes, crew)).await??;
    let mut now = end.now.clone();
    let read = match timeout(FIRST, now.wait_for(SettingsNow::is_known)).await {
        Ok(Ok(read)) => read.off(),
        // The task has ended, and the agent ends; or the API server takes its time.
        Ok(Err(_)) | Err(_) => None,
    };
    let file = OffFile::of_settings(run_dir);
    let (says, off) = watch::channel(read.unwrap_or_else(|| file.is_there()));
    tell(now, says, file, held, crew);
    Ok((off, end))
}

/// Has the start wait for what opens a client of the API server, and no longer than that may take.
///
/// # Errors
/// Where it takes longer.
pub(in crate::agent) async fn in_time<T>(
    kubernetes: &Kubernetes,
    opening: impl Future<Output = T>,
) -> anyhow::Result<T> {
    let opened = timeout(kubernetes.pace.of(OPENS), opening).await;
    opened.map_err(|_| {
        anyhow::anyhow!(
            "it could not be read within {OPENS:?} how the API server is reached: a program that gives credentials (`exec` in the kubeconfig file) hangs, or a disk"
        )
    })
}

/// The word of the settings where they cannot be followed yet: what is kept. That is tried again until it succeeds, and the settings are followed from then on.
/// `held`: as in [`follow`].
pub(in crate::agent) fn kept(
    kubernetes: Kubernetes,
    run_dir: &Path,
    crew: &Crew,
    held: watch::Receiver<bool>,
) -> watch::Receiver<bool> {
    let file = OffFile::of_settings(run_dir);
    let (says, off) = watch::channel(file.is_there());
    let theirs = crew.clone();
    crew.task("settings", async move {
        let stop = theirs.stop();
        let Some(opened) = stop.run_until_cancelled(reopen(&kubernetes, &theirs)).await else {
            return Ok(());
        };
        tell(opened.now, says, file, held, &theirs);
        stop.cancelled().await;
        Ok(())
    });
    off
}

/// Tries to open the watch until that succeeds.
async fn reopen(kubernetes: &Kubernetes, crew: &Crew) -> SettingsEnd {
    loop {
        sleep(kubernetes.pace.of(REREAD)).await;
        // The start told why.
        if let Ok(end) = open(kubernetes, crew).await {
            return end;
        }
    }
}

/// Opens the watch of the settings, and has it go on.
///
/// # Errors
/// As [`follow`].
async fn open(kubernetes: &Kubernetes, crew: &Crew) -> anyhow::Result<SettingsEnd> {
    let kubernetes = kubernetes.clone();
    let here = Handle::current();
    // Credentials may come from a program that is run, or from files on a disk that hangs: kube waits for both on the calling thread.
    let opening = crew.blocking("settings", move || {
        here.block_on(async {
            let (end, work) = kubernetes.watch_settings().await?;
            let work: BoxFuture<'static, ()> = Box::pin(work);
            anyhow::Ok((end, work))
        })
    });
    let (end, work) = opening.await??;
    let stop = crew.stop();
    crew.task("settings", async move {
        stop.run_until_cancelled(work).await;
        Ok(())
    });
    Ok(end)
}

/// Has the word said and kept from now on.
fn tell(
    now: watch::Receiver<SettingsNow>,
    says: watch::Sender<bool>,
    file: OffFile,
    held: watch::Receiver<bool>,
    crew: &Crew,
) {
    let (reads, read) = watch::channel(None);
    crew.task("settings", say(now, says, reads, crew.stop()));
    crew.task("settings", keep(read, file, held, crew.clone()));
}

/// Says whether the settings turn the agent off. No disk holds it up. `reads`: the same, once anything was read.
async fn say(
    mut now: watch::Receiver<SettingsNow>,
    says: watch::Sender<bool>,
    reads: watch::Sender<Option<bool>>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    loop {
        let read = now.borrow_and_update().off();
        if let Some(off) = read {
            says.send_if_modified(|before| std::mem::replace(before, off) != off);
            reads.send_if_modified(|before| before.replace(off) != Some(off));
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            changed = now.changed() => if changed.is_err() {
                // The watch ends with the agent.
                stop.cancelled().await;
                return Ok(());
            }
        }
    }
}

/// Keeps the word in the file from when on the lock is held. Before, the file is the other process's that has the lock.
async fn keep(
    mut read: watch::Receiver<Option<bool>>,
    file: OffFile,
    mut held: watch::Receiver<bool>,
    crew: Crew,
) -> anyhow::Result<()> {
    let stop = crew.stop();
    let lock = async { held.wait_for(|held| *held).await.is_ok() };
    let is_held = stop.run_until_cancelled(lock).await == Some(true);
    if !is_held {
        // The start was given up.
        stop.cancelled().await;
        return Ok(());
    }
    let with = file.clone();
    let mut kept = crew.blocking("settings", move || with.is_there()).await?;
    let mut told = None;
    loop {
        let word = *read.borrow_and_update();
        if let Some(off) = word.filter(|off| *off != kept) {
            let with = file.clone();
            let stored = crew.blocking("settings", move || match off {
                true => with.write(&Off::now(OffRow::SETTINGS.to_owned(), String::new())),
                false => with.remove().map(drop),
            });
            match stored.await? {
                Ok(()) => {
                    kept = off;
                    told = None;
                }
                Err(error) => {
                    let problem = error.to_string();
                    if told.as_ref() != Some(&problem) {
                        tracing::error!(
                            event = "off-not-kept",
                            problem,
                            off,
                            "the word of the settings is not stored; an agent that starts without the API server goes by an older one"
                        );
                    }
                    told = Some(problem);
                }
            }
        }
        let is_kept = word.is_none_or(|off| off == kept);
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            changed = read.changed() => if changed.is_err() {
                // Whoever reads ends with the agent.
                stop.cancelled().await;
                return Ok(());
            },
            () = sleep(AGAIN), if !is_kept => {}
        }
    }
}

/// The row of an agent that the settings turn off.
pub(in crate::agent) fn row(run_dir: &Path) -> OffRow {
    // The file may not be written yet.
    let since = OffFile::of_settings(run_dir).read().and_then(|off| off.since);
    OffRow::of_settings(since.unwrap_or_else(Timestamp::now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{ApiServer, Pace};

    /// A generous limit, since the machine may be busy.
    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn the_file_is_left_alone_until_the_lock_is_held() {
        let folder = tempfile::tempdir().unwrap();
        let file = OffFile::of_settings(folder.path());
        let crew = Crew::default();
        let (reads, read) = watch::channel(Some(true));
        let (has_lock, held) = watch::channel(false);
        crew.task("settings", keep(read, file.clone(), held, crew.clone()));
        sleep(Duration::from_millis(50)).await;
        assert!(!file.is_there());
        // The process that has the lock writes it meanwhile.
        file.write(&Off::now("another".to_owned(), String::new())).unwrap();
        reads.send_replace(Some(false));
        sleep(Duration::from_millis(50)).await;
        assert!(file.is_there());
        has_lock.send_replace(true);
        let removed = async {
            while file.is_there() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LIMIT, removed).await.unwrap();
        crew.end();
    }

    #[tokio::test]
    async fn a_start_that_is_given_up_before_it_has_the_lock_is_no_fault() {
        let folder = tempfile::tempdir().unwrap();
        let file = OffFile::of_settings(folder.path());
        let crew = Crew::default();
        let (_reads, read) = watch::channel(Some(true));
        let (has_lock, held) = watch::channel(false);
        crew.task("settings", keep(read, file.clone(), held, crew.clone()));
        drop(has_lock);
        sleep(Duration::from_millis(50)).await;
        crew.end();
        crew.wind_up(LIMIT).await;
        assert!(crew.fallen().is_none() && !file.is_there());
    }

    #[tokio::test]
    async fn a_program_that_gives_no_credentials_is_not_waited_for_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        let text = "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]\n\
            contexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {exec: {\
            apiVersion: client.authentication.k8s.io/v1, command: sleep, args: ['3'], interactiveMode: Never}}}]\n";
        std::fs::write(&kubeconfig, text).unwrap();
        let kubernetes = Kubernetes {
            server: ApiServer { kubeconfig: Some(kubeconfig), server: None },
            no_headless: false,
            pace: Pace::faster(300),
        };
        let crew = Crew::default();
        let (_has_lock, held) = watch::channel(true);
        let begun = std::time::Instant::now();
        let error = follow(&kubernetes, folder.path(), &crew, held).await.unwrap_err().to_string();
        assert!(error.contains("within 30s") && error.contains("`exec`"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
        crew.end();
    }

    #[tokio::test]
    async fn a_way_to_the_api_server_that_cannot_be_read_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        OffFile::of_settings(folder.path()).write(&Off::now(String::new(), String::new())).unwrap();
        let kubernetes = Kubernetes {
            server: ApiServer { kubeconfig: Some(folder.path().join("none")), server: None },
            no_headless: false,
            pace: Pace::faster(10_000),
        };
        let crew = Crew::default();
        let (_has_lock, held) = watch::channel(true);
        let off = kept(kubernetes, folder.path(), &crew, held);
        sleep(Duration::from_millis(50)).await;
        // It is tried, and the word that is kept holds meanwhile. It is still followed.
        assert!(*off.borrow() && off.has_changed().is_ok() && crew.fallen().is_none());
        crew.end();
        crew.wind_up(LIMIT).await;
        assert!(crew.fallen().is_none());
    }
}
