//! What of a process's memory is the kernel's maps, which the process has mapped. Pure.

/// The name of such a mapping (`bpf_map_new_fd`, kernel/bpf/syscall.c, 6.18).
const MAP: &str = "anon_inode:bpf-map";

/// The resident memory of all mapped BPF maps in KiB, of the text of `/proc/PID/smaps`.
pub(super) fn maps(smaps: &str) -> u64 {
    let mut is_map = false;
    let mut sum = 0;
    for line in smaps.lines() {
        // A mapping begins with its range of addresses. Names of its values end with a colon.
        if line.split(' ').next().is_some_and(|word| word.contains('-')) {
            is_map = line.ends_with(MAP);
        } else if is_map && let Some(size) = line.strip_prefix("Rss:") {
            sum += size.trim().trim_end_matches(" kB").parse().unwrap_or(0);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mapped_maps_count() {
        let text = "7f3166140000-7f3166341000 r--s 00000000 00:0f 1053                       anon_inode:bpf-map\n\
            Size:               2052 kB\nRss:                2052 kB\nPss:                1026 kB\n\
            7f3166341000-7f3166342000 rw-s 00000000 00:0f 1053                       anon_inode:bpf-map\n\
            Rss:                   4 kB\n\
            7f3166400000-7f3166500000 rw-p 00000000 00:00 0 \nRss:                 512 kB\n\
            VmFlags: rd wr mr mw me ac sd\n";
        assert_eq!(maps(text), 2_056);
        assert_eq!(maps(""), 0);
    }
}
