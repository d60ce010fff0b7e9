//! Debian's control format: paragraphs of `Key: value` with indented continuation lines (deb822(5)).

use std::collections::HashMap;

/// One paragraph. Keys are in lower case. A value of several lines has newlines between them.
pub(crate) type Paragraph = HashMap<String, String>;

/// Reads all paragraphs. Comments, and lines that are no fields, are ignored, as apt does.
pub(crate) fn paragraphs(text: &str) -> Vec<Paragraph> {
    let mut all = Vec::new();
    let mut current = Paragraph::new();
    let mut key = String::new();
    for line in text.lines() {
        if line.trim().is_empty() {
            if !current.is_empty() {
                all.push(std::mem::take(&mut current));
            }
            key.clear();
        } else if line.starts_with('#') {
        } else if line.starts_with([' ', '\t']) {
            if let Some(value) = current.get_mut(&key) {
                value.push('\n');
                value.push_str(line.trim());
            }
        } else if let Some((name, value)) = line.split_once(':') {
            key = name.trim().to_ascii_lowercase();
            current.insert(key.clone(), value.trim().to_owned());
        }
    }
    if !current.is_empty() {
        all.push(current);
    }
    all
}

/// A package of a `Packages` index, with the fields that are used here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// The path below the mirror's root.
    pub(crate) filename: String,
    pub(crate) sha256: String,
    /// The packages that it needs in exactly one version. They are parts of the same build.
    pub(crate) siblings: Vec<String>,
}

/// The packages of an index whose names start with `prefix`. The index has 60,000 packages, so the others are not parsed.
pub(crate) fn packages(index: &str, prefix: &str) -> HashMap<String, Package> {
    let mut found: HashMap<String, Package> = HashMap::new();
    for text in index.split("\n\n") {
        if !text.trim_start().starts_with(&format!("Package: {prefix}")) {
            continue;
        }
        for mut fields in paragraphs(text) {
            let mut take = |key: &str| fields.remove(key);
            let (Some(name), Some(version), Some(filename), Some(sha256)) =
                (take("package"), take("version"), take("filename"), take("sha256"))
            else {
                continue;
            };
            let siblings = take("depends").map(|depends| exact(&depends)).unwrap_or_default();
            let package = Package { name: name.clone(), version, filename, sha256, siblings };
            // An index may list several versions. apt takes the newest, which is last in a sorted index.
            found.insert(name, package);
        }
    }
    found
}

/// The names in a `Depends` value that are bound to one version: `name (= version)`.
fn exact(depends: &str) -> Vec<String> {
    depends
        .split(',')
        .filter(|clause| clause.contains("(=") && !clause.contains('|'))
        .filter_map(|clause| clause.split_whitespace().next())
        .map(|name| name.split(':').next().unwrap_or(name).to_owned())
        .collect()
}

/// The SHA256 of a file that a `Release` file names.
pub(crate) fn release_hash(release: &Paragraph, file: &str) -> Option<String> {
    release.get("sha256")?.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let hash = words.next()?;
        let _size = words.next()?;
        let name = words.next()?;
        (name == file).then(|| hash.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_with_comments_and_continuations() {
        let text = "# head\nTypes: deb\nURIs: http://mirror.test/debian\n# inside\nSuites: a\n b\n\n\n\nTypes: deb-src\n";
        let all = paragraphs(text);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0]["suites"], "a\nb");
        assert_eq!(all[1]["types"], "deb-src");
    }

    #[test]
    fn packages_are_found_with_the_parts_of_their_build() {
        let index = "Package: zlib\nVersion: 1\nFilename: z\nSHA256: 0\n\n\
            Package: linux-image-cloud-amd64\nVersion: 7.2.13-1\n\
            Depends: linux-base-cloud-amd64 (= 7.2.13-1), kmod, initramfs-tools (>= 0.120) | dracut, x (= 1) | y\n\
            Filename: pool/l.deb\nSHA256: abc\n";
        let found = packages(index, "linux-");
        assert_eq!(found.len(), 1);
        let package = &found["linux-image-cloud-amd64"];
        assert_eq!(package.siblings, ["linux-base-cloud-amd64"]);
        assert_eq!((package.filename.as_str(), package.sha256.as_str()), ("pool/l.deb", "abc"));
    }

    #[test]
    fn the_hash_is_taken_from_the_sha256_list_alone() {
        let release =
            paragraphs("Suite: s\nMD5Sum:\n aa 1 main/P.xz\nSHA256:\n bb 1 main/P\n cc 1 main/P.xz\n")
                .remove(0);
        assert_eq!(release_hash(&release, "main/P.xz").as_deref(), Some("cc"));
        assert_eq!(release_hash(&release, "main/none"), None);
    }
}
