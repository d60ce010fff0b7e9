//! Finds the Debian mirrors of apt's configuration on this system. No mirror's name stands in the source.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::deb822;

/// The variable that overrides apt's configuration. It is for systems without apt.
pub(crate) const VARIABLE: &str = "NODEFENCE_DEBIAN_MIRROR";

/// The mirrors' roots to try for any suite. A root is the folder that has `dists/`. The configured roots are first.
pub(crate) fn candidates() -> Result<Vec<String>> {
    if let Some(mirror) = env::var(VARIABLE).ok().filter(|mirror| !mirror.is_empty()) {
        return Ok(with_archives(vec![mirror]));
    }
    let mut configured = Vec::new();
    for file in source_files(Path::new("/etc/apt")) {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let found = match file.extension().and_then(|extension| extension.to_str()) {
            Some("sources") => from_deb822(&text),
            _ => from_one_line(&text),
        };
        configured.extend(found.into_iter().flat_map(|uri| resolve(&uri)));
    }
    let mut roots: Vec<String> = Vec::new();
    for uri in configured {
        if !roots.contains(&uri) {
            roots.push(uri);
        }
    }
    if roots.is_empty() {
        bail!("no Debian mirror in /etc/apt/sources.list or sources.list.d; name one in {VARIABLE}");
    }
    // A security archive has no kernel in a suite of this name, so it is tried last.
    roots.sort_by_key(|uri| uri.contains("security"));
    Ok(with_archives(roots))
}

fn source_files(etc: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(etc.join("sources.list.d"))
        .map(|entries| entries.filter_map(Result::ok).map(|entry| entry.path()).collect())
        .unwrap_or_default();
    files.retain(|file| {
        file.extension().is_some_and(|extension| extension == "list" || extension == "sources")
    });
    files.sort();
    files.insert(0, etc.join("sources.list"));
    files
}

/// The mirrors that a URI stands for. `mirror+file:` names a file with a mirror on each line, as in Debian's cloud images.
fn resolve(uri: &str) -> Vec<String> {
    let Some(file) = uri.strip_prefix("mirror+file:") else { return vec![uri.to_owned()] };
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_whitespace().next());
    lines.filter(|word| !word.starts_with('#')).filter_map(plain).collect()
}

fn from_deb822(text: &str) -> Vec<String> {
    let mut uris = Vec::new();
    for source in deb822::paragraphs(text) {
        let field = |key: &str| source.get(key).map(String::as_str).unwrap_or_default();
        let binary = field("types").split_whitespace().any(|kind| kind == "deb");
        if binary && !field("enabled").eq_ignore_ascii_case("no") {
            uris.extend(field("uris").split_whitespace().filter_map(plain));
        }
    }
    uris
}

fn from_one_line(text: &str) -> Vec<String> {
    let mut uris = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(rest) = line.strip_prefix("deb").filter(|rest| rest.starts_with([' ', '\t'])) else {
            continue;
        };
        let rest = rest.trim_start();
        // Options may stand in brackets before the URI.
        let rest = match rest.strip_prefix('[') {
            Some(options) => options.split_once(']').map_or("", |(_, rest)| rest),
            None => rest,
        };
        uris.extend(rest.split_whitespace().next().and_then(plain));
    }
    uris
}

fn plain(uri: &str) -> Option<String> {
    let known = ["http://", "https://", "file:", "mirror+file:"].iter().any(|scheme| uri.starts_with(scheme));
    known.then(|| uri.trim_end_matches('/').to_owned())
}

/// Appends the places of archived suites to the mirrors: a sibling folder and a sibling host of each mirror.
fn with_archives(mut roots: Vec<String>) -> Vec<String> {
    let archives: Vec<String> = roots.iter().flat_map(|root| archives(root)).collect();
    for archive in archives {
        if !roots.contains(&archive) {
            roots.push(archive);
        }
    }
    roots
}

fn archives(root: &str) -> Vec<String> {
    let mut found = Vec::new();
    if let Some((parent, last)) = root.rsplit_once('/').filter(|(parent, _)| !parent.ends_with('/')) {
        found.push(format!("{parent}/debian-archive/{last}"));
    }
    if let Some((scheme, (host, path))) =
        root.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.split_once('/')?)))
    {
        if let Some((_, domain)) = host.split_once('.').filter(|(_, domain)| domain.contains('.')) {
            found.push(format!("{scheme}://archive.{domain}/{path}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_give_the_uris_of_binary_sources() {
        let deb822 = "Types: deb deb-src\nURIs: http://mirror.test/debian/ http://other.test/debian\nSuites: s\n\n\
            Types: deb\nEnabled: no\nURIs: http://off.test/debian\n\nTypes: deb-src\nURIs: http://src.test/debian\n";
        assert_eq!(from_deb822(deb822), ["http://mirror.test/debian", "http://other.test/debian"]);
        let one_line = "# deb http://off.test/debian s main\ndeb-src http://src.test/debian s main\n\
            deb [arch=amd64 signed-by=/k] https://mirror.test/debian s main # why\ndeb cdrom:[x]/ s main\n";
        assert_eq!(from_one_line(one_line), ["https://mirror.test/debian"]);
    }

    #[test]
    fn archived_suites_are_looked_for_beside_the_mirror() {
        let all = with_archives(vec!["http://deb.distro.test/debian".to_owned()]);
        assert_eq!(
            all,
            [
                "http://deb.distro.test/debian",
                "http://deb.distro.test/debian-archive/debian",
                "http://archive.distro.test/debian"
            ]
        );
        assert_eq!(archives("http://mirror/debian"), ["http://mirror/debian-archive/debian"]);
    }
}
