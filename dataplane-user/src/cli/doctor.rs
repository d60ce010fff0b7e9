use std::path::Path;

use super::{
    args::Format,
    exit::Exit,
    output::{colours, print},
};
use crate::{
    dataplane::features,
    doctor::{Check, Facts, Level, judge, worst},
};

/// Looks at the machine and prints what it finds.
pub(super) fn run(format: Format, devices: &[String], pin_dir: &Path) -> anyhow::Result<Exit> {
    let _ = pin_dir;
    let facts = Facts::gather(devices)?;
    let mut checks = judge(&facts);
    checks.extend(tried(&features()));
    print(format, &checks, |checks| table(checks, colours()))?;
    Ok(if worst(&checks) == Level::Fail { Exit::Unhealthy } else { Exit::Ok })
}

fn tried(features: &crate::dataplane::Features) -> Vec<Check> {
    let mut checks = Vec::new();
    checks.push(if features.classifier {
        Check::ok("TC programs", "can be loaded")
    } else {
        Check::fail(
            "TC programs",
            "cannot be loaded",
            "run as root, on a kernel with CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_BPF",
        )
    });
    checks
}

fn table(checks: &[Check], colours: bool) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let (word, colour) = match check.level {
            Level::Ok => ("ok  ", 32),
            Level::Warn => ("warn", 33),
            Level::Fail => ("fail", 31),
        };
        if colours {
            text.push_str(&format!("\u{1b}[{colour}m{word}\u{1b}[0m"));
        } else {
            text.push_str(word);
        }
        text.push_str(&format!("  {:<width$}  {}\n", check.name, check.found));
        if let Some(remedy) = &check.remedy {
            text.push_str(&format!("      {:<width$}  -> {remedy}\n", ""));
        }
    }
    text
}
