//! Tests of reserved memory, in a process without other tests, since they measure its memory.

use stratann_tier::{GrowingBytes, TierError, rss_bytes};

#[test]
fn room_costs_nothing_until_it_is_used() {
    const MIB: usize = 1 << 20;
    let before = rss_bytes();
    if before == 0 {
        return; // No /proc.
    }
    let grown = || rss_bytes().saturating_sub(before) as usize;
    let bytes = GrowingBytes::filled::<TierError>(MIB, 1024 * MIB, |bytes| {
        bytes.fill(1);
        Ok(())
    })
    .unwrap();
    assert_eq!(bytes.capacity(), 1024 * MIB);
    assert!(grown() < 8 * MIB, "1 MiB of 1 GiB takes {} bytes", grown());

    let block = vec![2; MIB];
    for number in 1..=64 {
        assert_eq!(bytes.append(&block), Some(number * MIB));
    }
    assert!(
        (60 * MIB..80 * MIB).contains(&grown()),
        "65 MiB of 1 GiB take {} bytes",
        grown()
    );
    drop(bytes);
    assert!(grown() < 8 * MIB, "{} bytes are left", grown());
}
