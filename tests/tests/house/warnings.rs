//! `docs/warnings.md` is made from the table of warnings in the code.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use nodefence::report::{Code, Effect, Explanation};

/// If this variable is set, the test writes the page instead of comparing it.
const WRITE: &str = "NODEFENCE_BLESS";

const HEAD: &str = "# Warnings

`nodefence status` begins with a word, which says whether traffic to flagged nodes is cut on this node. Below it stands a line for each warning, with its number.

| word | |
|---|---|
| `BLIND` | Nothing is cut though it should be. |
| `OBSERVE` | Nothing is cut, only counted: by `--mode observe` or `nodefence mode`, beside a replacement of kube-proxy, or with a view that is too old. |
| `DEGRADED` | It is cut, but for what the warnings name. |
| `OK` | It is cut. |

The word higher up in this table takes precedence. An observing agent that has warnings as well says `OBSERVE`, since what cuts nothing must be known first. Its warnings stand in the same line.

- A number never gets another meaning. The text of a message may change.
- `nodefence doctor NF07` says of one what stands here, with this node's own figures. `nodefence doctor` lists those that stand, beside what it finds itself.
- `CLUSTER_FILE`, `PIN_DIR`, `DEVICE` and `ROOM` in a command stand for this node's own, which `doctor` fills in.
- `nodefence status --check` ends with exit code 5 where a warning stands. What was counted since the agent began does not stand.
- In JSON and YAML `status` has `state`, `why` and `warnings` (`code`, `message`, `standing`).

*`NODEFENCE_BLESS=1 cargo test -p nodefence-tests --test house` writes this page from `dataplane-user/src/report/warnings.rs`.*
";

fn page() -> Result<String> {
    let mut page = HEAD.to_owned();
    for code in Code::ALL {
        let Explanation { effect, title, means, users, remedy } = code.explanation();
        let effect = match effect {
            Effect::Blind => "`BLIND`",
            Effect::Fails => "fail of `doctor`",
            Effect::Limits => "warn of `doctor`",
            Effect::Past => "counted since the agent began",
        };
        write!(
            page,
            "\n## {code}: {title}\n\n{means}\n\n- Users see: {users}\n- Counts as: {effect}\n\n```sh\n{remedy}\n```\n"
        )?;
    }
    Ok(page)
}

#[test]
fn the_page_on_warnings_is_that_of_the_code() -> Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/warnings.md");
    let page = page()?;
    if std::env::var_os(WRITE).is_some() {
        return fs::write(&file, page).context("docs/warnings.md");
    }
    let there = fs::read_to_string(&file).context("docs/warnings.md")?;
    let differs = there.lines().zip(page.lines()).find(|(there, expected)| there != expected);
    ensure!(there == page, "docs/warnings.md differs from the code ({WRITE}=1 writes it): {differs:?}");
    Ok(())
}
