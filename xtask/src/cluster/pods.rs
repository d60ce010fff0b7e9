//! The images of the pods, as archives for `ctr images import`, in the format of `docker save`.

use anyhow::Result;
use serde_json::{Value, json};

use crate::image::{sum, tar};

/// The path of the program in the images.
const PROGRAM: &str = "nodefence-pod";

/// The images of the pods' program: the servers', and that of the pods' sandboxes.
pub(super) fn images(program: &[u8]) -> Result<[(&'static str, Vec<u8>); 2]> {
    let path = format!("/{PROGRAM}");
    let servers = archive("localhost/nodefence-pod:1", &json!([path]), program)?;
    let sandboxes = archive("localhost/pause:1", &json!([path, "pause"]), program)?;
    Ok([("nodefence-pod", servers), ("pause", sandboxes)])
}

/// An image with one layer that has the program and nothing else.
fn archive(name: &str, entrypoint: &Value, program: &[u8]) -> Result<Vec<u8>> {
    let layer = tar([(PROGRAM, 0o755, program)])?;
    let config = json!({
        "architecture": "amd64", "os": "linux", "config": {"Entrypoint": entrypoint},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", sum(&layer))]},
    });
    let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]);
    tar([
        ("manifest.json", 0o644, manifest.to_string().as_bytes()),
        ("config.json", 0o644, config.to_string().as_bytes()),
        ("layer.tar", 0o644, &layer),
    ])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;

    use sha2::{Digest as _, Sha256};

    use super::*;

    fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(archive);
        let read = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
            let mut entry = entry.expect("an entry");
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("read");
            (entry.path().expect("a path").display().to_string(), bytes)
        };
        archive.entries().expect("entries").map(read).collect()
    }

    #[test]
    fn an_image_leads_from_its_name_to_the_program() {
        for (image, name, entrypoint) in [
            (0, "localhost/nodefence-pod:1", json!(["/nodefence-pod"])),
            (1, "localhost/pause:1", json!(["/nodefence-pod", "pause"])),
        ] {
            let (_, archive) = &images(b"program").expect("two images")[image];
            let found = files(archive);
            let manifest: Value = serde_json::from_slice(&found["manifest.json"]).expect("JSON");
            assert_eq!(manifest[0]["RepoTags"], json!([name]));
            let config = manifest[0]["Config"].as_str().expect("a config");
            let config: Value = serde_json::from_slice(&found[config]).expect("JSON");
            assert_eq!(config["config"]["Entrypoint"], entrypoint);
            let layer = &found[manifest[0]["Layers"][0].as_str().expect("a layer")];
            let sum: String = Sha256::digest(layer).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(config["rootfs"]["diff_ids"], json!([format!("sha256:{sum}")]));
            assert_eq!(files(layer), BTreeMap::from([(PROGRAM.to_owned(), b"program".to_vec())]));
        }
    }
}
