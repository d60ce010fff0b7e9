use std::{fs, future::pending, sync::mpsc::channel};

use super::*;

/// Longer than any wait of these tests takes.
const LONG: Duration = Duration::from_secs(60);

/// Waits for the first that falls. That alone does not end the agent: whoever runs the agent sees this, and ends it.
async fn who(crew: &Crew) -> Fallen {
    let fallen = timeout(LONG, crew.falls()).await.expect("nobody fell");
    assert!(!crew.stop().is_cancelled());
    fallen
}

/// The name of the calling thread, as `ps` shows it.
fn shown() -> String {
    fs::read_to_string("/proc/thread-self/comm").unwrap().trim_end().to_owned()
}

#[tokio::test]
async fn a_panic_is_told_whoever_it_was() {
    let panics = || -> anyhow::Result<()> { panic!("on purpose") };
    let thread = Crew::default();
    assert!(thread.thread("thread", Priority::First, panics).unwrap().join().is_err());
    assert_eq!(who(&thread).await, Fallen::Panicked("thread"));
    let hand = Crew::default();
    assert!(hand.hand("hand", Priority::Usual, || panic!("on purpose")).unwrap().join().is_err());
    assert_eq!(who(&hand).await, Fallen::Panicked("hand"));
    let task = Crew::default();
    task.task("task", async {
        tokio::task::yield_now().await;
        panic!("on purpose")
    });
    assert_eq!(who(&task).await, Fallen::Panicked("task"));
    let errand = Crew::default();
    errand.errand("errand", async { panic!("on purpose") });
    assert_eq!(who(&errand).await, Fallen::Panicked("errand"));
    let blocking = Crew::default();
    // Also where nobody waits for it.
    let waits = blocking.blocking("blocking", move || panics().unwrap());
    assert_eq!(waits.await, Err(Fallen::Panicked("blocking")));
    assert_eq!(who(&blocking).await, Fallen::Panicked("blocking"));
}

#[tokio::test]
async fn a_panic_is_told_also_while_the_agent_ends() {
    let crew = Crew::default();
    crew.end();
    assert!(crew.thread("late", Priority::Usual, || panic!("on purpose")).unwrap().join().is_err());
    assert_eq!(crew.fallen(), Some(Fallen::Panicked("late")));
}

#[tokio::test]
async fn whoever_is_to_stay_does_not_end_by_itself() {
    let crew = Crew::default();
    crew.thread("thread", Priority::Usual, || Ok(())).unwrap().join().unwrap();
    assert_eq!(who(&crew).await, Fallen::Ended("thread"));
    let crew = Crew::default();
    crew.task("task", async { Ok(()) });
    assert_eq!(who(&crew).await, Fallen::Ended("task"));
    let crew = Crew::default();
    crew.task("fails", async { anyhow::bail!("no more") });
    assert_eq!(who(&crew).await, Fallen::Failed("fails", "no more".to_owned()));
    // Of those that fall only the first counts.
    crew.task("other", async { Ok(()) });
    crew.wind_up(LONG).await;
    assert_eq!(crew.fallen(), Some(Fallen::Failed("fails", "no more".to_owned())));
}

#[tokio::test]
async fn an_end_that_was_asked_for_is_none_to_tell() {
    let crew = Crew::default();
    crew.hand("hand", Priority::Usual, || ()).unwrap().join().unwrap();
    crew.errand("errand", async {});
    assert_eq!(crew.blocking("blocking", || 7).await, Ok(7));
    let thread = crew.stop();
    let task = crew.stop();
    let (ended, sees) = channel();
    let stays = crew.thread("thread", Priority::Usual, move || {
        sees.recv()?;
        assert!(thread.is_cancelled());
        Ok(())
    });
    crew.task("task", async move {
        task.cancelled().await;
        Ok(())
    });
    crew.end();
    ended.send(()).unwrap();
    stays.unwrap().join().unwrap();
    crew.wind_up(LONG).await;
    assert_eq!(crew.fallen(), None);
    // A task that does not end is not waited for.
    let crew = Crew::default();
    crew.task("hangs", pending());
    crew.end();
    crew.wind_up(Duration::from_millis(10)).await;
    assert_eq!(crew.fallen(), None);
}

#[test]
fn each_bears_its_name() {
    let crew = Crew::default();
    let (tell, told) = channel();
    let tells = tell.clone();
    let thread = crew.hand("rescue-sticky", Priority::Usual, move || tells.send(shown()).unwrap());
    thread.unwrap().join().unwrap();
    assert_eq!(told.recv().unwrap(), "rescue-sticky");
    runtime().unwrap().block_on(async {
        assert_eq!(crew.blocking("audit", shown).await.unwrap(), "audit");
        // The same thread, which has no other work.
        tokio::task::spawn_blocking(move || tell.send(shown()).unwrap()).await.unwrap();
    });
    assert_eq!(told.recv().unwrap(), WORKER);
}

/// The calling thread's policy: field 41 of proc_pid_stat(5), the 39th after the name.
fn policy() -> i32 {
    let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    after_name.split_whitespace().nth(38).unwrap().parse().unwrap()
}

#[test]
fn only_those_that_somebody_waits_for_take_a_processor_when_they_wake_up() {
    let crew = Crew::default();
    let (tell, told) = channel();
    let of = |nice| {
        let tell = tell.clone();
        crew.hand("hand", nice, move || tell.send(policy()).unwrap()).unwrap().join().unwrap();
        told.recv().unwrap()
    };
    assert_eq!(of(Priority::Batch), nix::libc::SCHED_BATCH);
    assert_eq!(of(Priority::Usual), nix::libc::SCHED_OTHER);
    assert_eq!(of(Priority::First), nix::libc::SCHED_OTHER);
    let blocks = runtime().unwrap().block_on(crew.blocking("blocking", policy));
    assert_eq!(blocks, Ok(nix::libc::SCHED_OTHER));
    let task = runtime().unwrap().block_on(async { tokio::spawn(async { policy() }).await });
    assert_eq!(task.unwrap(), nix::libc::SCHED_OTHER);
}
