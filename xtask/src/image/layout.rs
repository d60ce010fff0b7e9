//! Writes an OCI image layout (image-spec v1.1): one image per architecture, and an index of them. The same binaries give the same bytes.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use flate2::{Compression, GzBuilder};
use oci_spec::image::{
    Arch, ConfigBuilder, Descriptor, DescriptorBuilder, ImageConfigurationBuilder, ImageIndexBuilder,
    ImageManifestBuilder, MediaType, OciLayoutBuilder, Os, PlatformBuilder, RootFsBuilder, Sha256Digest,
};
use sha2::{Digest as _, Sha256};

/// The path of the program in the image.
const PROGRAM: &str = "nodefence";
/// The annotation by which tools find an image of a layout: its tag.
const TAG: &str = "org.opencontainers.image.ref.name";
/// The annotation that names an image in full. containerd stores what it imports under this name.
const NAME: &str = "io.containerd.image.name";
/// The name before the tag, which is the one that the chart asks for.
pub(crate) const REPOSITORY: &str = "ghcr.io/nodefence/nodefence";

/// The image's full name.
pub(super) fn name(tag: &str) -> String {
    format!("{REPOSITORY}:{tag}")
}

/// A program for one architecture.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) arch: Arch,
    pub(super) bytes: Vec<u8>,
}

/// Writes the layout into `folder`, which must be empty or missing. Returns the digest of the index, as registries name it.
pub(super) fn write(folder: &Path, tag: &str, programs: &[Program]) -> Result<String> {
    let blobs = Blobs { folder: folder.join("blobs/sha256") };
    fs::create_dir_all(&blobs.folder).with_context(|| format!("cannot make {}", blobs.folder.display()))?;
    let images = programs.iter().map(|program| image(&blobs, program)).collect::<Result<Vec<_>>>()?;
    let index = ImageIndexBuilder::default()
        .schema_version(2_u32)
        .media_type(MediaType::ImageIndex)
        .manifests(images)
        .build()?;
    let mut whole = blobs.put(MediaType::ImageIndex, index.to_string()?.as_bytes())?;
    let digest = whole.digest().to_string();
    let annotations = [(NAME.to_owned(), name(tag)), (TAG.to_owned(), tag.to_owned())];
    whole.set_annotations(Some(HashMap::from(annotations)));
    let entry = ImageIndexBuilder::default().schema_version(2_u32).manifests(vec![whole]).build()?;
    let layout = OciLayoutBuilder::default().image_layout_version("1.0.0").build()?;
    // As a value the annotations have an order. Those of a map would differ between runs.
    let entry = serde_json::to_value(&entry)?.to_string();
    let files = [("index.json", entry), ("oci-layout", layout.to_string()?)];
    for (name, text) in files {
        fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))?;
    }
    Ok(digest)
}

/// The image of one architecture, as the index lists it.
fn image(blobs: &Blobs, program: &Program) -> Result<Descriptor> {
    let tar = tar([(PROGRAM, 0o755, &program.bytes)])?;
    let mut gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    gzip.write_all(&tar)?;
    let layer = blobs.put(MediaType::ImageLayerGzip, &gzip.finish()?)?;
    let config = ImageConfigurationBuilder::default()
        .architecture(program.arch.clone())
        .os(Os::Linux)
        .config(ConfigBuilder::default().entrypoint(vec![format!("/{PROGRAM}")]).build()?)
        .rootfs(
            RootFsBuilder::default().typ("layers").diff_ids(vec![format!("sha256:{}", sum(&tar))]).build()?,
        )
        .build()?;
    let config = blobs.put(MediaType::ImageConfig, config.to_string()?.as_bytes())?;
    let manifest = ImageManifestBuilder::default()
        .schema_version(2_u32)
        .media_type(MediaType::ImageManifest)
        .config(config)
        .layers(vec![layer])
        .build()?;
    let mut image = blobs.put(MediaType::ImageManifest, manifest.to_string()?.as_bytes())?;
    let platform = PlatformBuilder::default().architecture(program.arch.clone()).os(Os::Linux).build()?;
    image.set_platform(Some(platform));
    Ok(image)
}

/// The bytes of an archive of these files, owned by root: name, permissions, content. The same files give the same bytes.
pub(crate) fn tar<const N: usize>(files: [(&str, u32, &[u8]); N]) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, mode, bytes) in files {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(bytes.len() as u64);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        archive.append_data(&mut header, name, bytes)?;
    }
    Ok(archive.into_inner()?)
}

/// The content-addressed files of a layout.
struct Blobs {
    folder: std::path::PathBuf,
}

impl Blobs {
    fn put(&self, media_type: MediaType, bytes: &[u8]) -> Result<Descriptor> {
        let sum = sum(bytes);
        let path = self.folder.join(&sum);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        let digest: Sha256Digest = sum.parse()?;
        let descriptor = DescriptorBuilder::default()
            .media_type(media_type)
            .digest(digest)
            .size(bytes.len() as u64)
            .build()?;
        Ok(descriptor)
    }
}

/// The hexadecimal digits of the SHA-256 sum.
pub(crate) fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The layout as one file, as `ctr images import` takes it. The same layout gives the same bytes.
pub(super) fn pack(folder: &Path, file: &Path) -> Result<()> {
    let mut names = vec!["oci-layout".to_owned(), "index.json".to_owned()];
    let blobs = folder.join("blobs/sha256");
    for blob in fs::read_dir(&blobs).with_context(|| format!("cannot read {}", blobs.display()))? {
        names.push(format!("blobs/sha256/{}", blob?.file_name().to_string_lossy()));
    }
    names.sort();
    let out = fs::File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
    let mut tar = tar::Builder::new(out);
    tar.mode(tar::HeaderMode::Deterministic);
    for name in names {
        let path = folder.join(&name);
        tar.append_path_with_name(&path, &name).with_context(|| format!("cannot pack {}", path.display()))?;
    }
    tar.into_inner()?.sync_all()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use oci_spec::image::{ImageConfiguration, ImageIndex, ImageManifest};

    use super::*;
    use crate::cache::Scratch;

    fn programs() -> [Program; 2] {
        [
            Program { arch: Arch::Amd64, bytes: b"one".to_vec() },
            Program { arch: Arch::ARM64, bytes: b"two".to_vec() },
        ]
    }

    fn scratch(name: &str) -> Scratch {
        Scratch::new(&std::env::temp_dir().join(format!("nodefence-xtask-{name}"))).expect("a folder")
    }

    fn blob(folder: &Path, descriptor: &Descriptor) -> Vec<u8> {
        let bytes = fs::read(folder.join("blobs/sha256").join(descriptor.digest().digest())).expect("there");
        assert_eq!(
            (bytes.len() as u64, sum(&bytes).as_str()),
            (descriptor.size(), descriptor.digest().digest())
        );
        bytes
    }

    #[test]
    fn each_part_of_a_layout_leads_to_the_program() {
        let scratch = scratch("layout");
        let folder = scratch.path();
        let digest = write(folder, "0.1.0", &programs()).expect("written");
        let entry = ImageIndex::from_file(folder.join("index.json")).expect("an index");
        let [whole] = &entry.manifests()[..] else { panic!("{entry:?}") };
        assert_eq!(whole.digest().to_string(), digest);
        let annotations = whole.annotations().as_ref().expect("annotations");
        assert_eq!(annotations.get(TAG).map(String::as_str), Some("0.1.0"));
        assert_eq!(annotations.get(NAME).map(String::as_str), Some("ghcr.io/nodefence/nodefence:0.1.0"));
        let index = ImageIndex::from_reader(&blob(folder, whole)[..]).expect("an index");
        let found = index.manifests().iter().zip(programs());
        assert_eq!(index.manifests().len(), 2);
        for (image, program) in found {
            let platform = image.platform().as_ref().expect("a platform");
            assert_eq!((platform.architecture(), platform.os()), (&program.arch, &Os::Linux));
            let manifest = ImageManifest::from_reader(&blob(folder, image)[..]).expect("a manifest");
            let config = ImageConfiguration::from_reader(&blob(folder, manifest.config())[..]).expect("one");
            assert_eq!(config.architecture(), &program.arch);
            let [layer] = &manifest.layers()[..] else { panic!("{manifest:?}") };
            let mut tar = Vec::new();
            flate2::read::GzDecoder::new(&blob(folder, layer)[..]).read_to_end(&mut tar).expect("gzip");
            assert_eq!(config.rootfs().diff_ids()[..], [format!("sha256:{}", sum(&tar))]);
            let mut archive = tar::Archive::new(&tar[..]);
            let mut names = Vec::new();
            for file in archive.entries().expect("entries") {
                let mut file = file.expect("an entry");
                let header = file.header();
                assert_eq!(
                    (header.mode().ok(), header.uid().ok(), header.mtime().ok()),
                    (Some(0o755), Some(0), Some(0))
                );
                names.push(file.path().expect("a path").into_owned());
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes).expect("read");
                assert_eq!(bytes, program.bytes);
            }
            assert_eq!(names, [Path::new(PROGRAM)]);
        }
    }

    #[test]
    fn the_chart_asks_for_the_images_name() {
        let values = include_str!("../../../deploy/chart/nodefence/values.yaml");
        assert!(values.contains(&format!("\n  repository: {REPOSITORY}\n")));
    }

    #[test]
    fn the_archive_has_each_file_of_the_layout_at_its_place() {
        let scratch = scratch("archive");
        let folder = scratch.path().join("layout");
        write(&folder, "a", &programs()).expect("written");
        let file = scratch.path().join("one.tar");
        pack(&folder, &file).expect("packed");
        let mut archive = tar::Archive::new(fs::File::open(&file).expect("an archive"));
        let mut names = Vec::new();
        for entry in archive.entries().expect("entries") {
            let mut entry = entry.expect("an entry");
            let name = entry.path().expect("a path").into_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("read");
            assert_eq!(bytes, fs::read(folder.join(&name)).expect("of the layout"), "{}", name.display());
            names.push(name);
        }
        // An index, and a manifest, a configuration and a layer for each architecture.
        let blobs = names.iter().filter(|name| name.starts_with("blobs/sha256")).count();
        assert_eq!((blobs, names.len()), (7, 9), "{names:?}");
        assert!(names.iter().any(|name| name == Path::new("index.json")));
        assert!(names.iter().any(|name| name == Path::new("oci-layout")));
    }

    #[test]
    fn the_same_programs_give_the_same_digest_and_archive() {
        let folders = ["first", "second"].map(scratch);
        let digests =
            folders.each_ref().map(|folder| write(folder.path(), "a", &programs()).expect("written"));
        assert_eq!(digests[0], digests[1]);
        let archives = folders.each_ref().map(|folder| {
            let file = folder.path().join("nodefence.tar");
            pack(folder.path(), &file).expect("packed");
            fs::read(file).expect("there")
        });
        assert!(archives[0] == archives[1], "the archives differ");
        let [mut one, two] = programs();
        one.bytes.push(b'!');
        let other = scratch("other");
        assert_ne!(write(other.path(), "a", &[one, two]).expect("written"), digests[0]);
    }
}
