//! Unit tests of `commit::description`.

use super::*;

/// The document's example.
fn inception() -> Description {
    let ext = |label, dtype| BufferInfo::new(label, Direction::Ext, dtype, [1, 1000]);
    Description::new()
        .with_own_region(
            BufferInfo::new("IFM", Direction::In, DType::Uint8, [1, 299, 299, 3]).buffer_type(3),
        )
        .with_own_region(ext("691", DType::Uint8).buffer_type(9))
        .with_own_region(ext("689", DType::Fp32).index(1))
        .with_own_region(BufferInfo::new("690", Direction::Out, DType::Fp32, [1, 1000]))
}

#[test]
fn the_documents_example_loads_as_printed() {
    let description = inception();
    description.check().unwrap();
    assert_eq!(Direction::ALL.map(|direction| description.count(direction)), [1, 1, 2]);
    assert_eq!(description.regions.len(), 4);
    let sizes: Vec<u64> = description.regions.iter().map(|region| region.size).collect();
    assert_eq!(sizes, [268203, 1000, 4000, 4000]);
    let image = &description.buffers[description.labelled("IFM").unwrap()];
    assert_eq!((image.batch(), image.width(), image.height(), image.channel()), (1, 299, 299, 3));
    let logits = &description.buffers[description.position(Direction::Out, 0).unwrap()];
    assert_eq!((logits.nwhc, logits.label.as_str()), ([1, 1, 1, 1000], "690"));
    assert_eq!(description.in_order(), [0, 3, 1, 2]);
}

#[test]
fn labels_are_exact_and_the_first_of_two_is_found() {
    let description = inception()
        .with_own_region(BufferInfo::new("IFM", Direction::In, DType::Uint8, [4]).index(1))
        .with_own_region(BufferInfo::new("", Direction::In, DType::Uint8, [4]).index(2));
    description.check().unwrap();
    assert_eq!(description.labelled("IFM"), Ok(0));
    for label in ["ifm", "IFM ", "", "IF"] {
        let unknown = CommitFault::UnknownLabel { label: label.to_owned() };
        assert_eq!(description.labelled(label), Err(unknown));
    }
}

#[test]
fn an_unknown_index_is_answered_with_the_count() {
    let description = inception();
    for index in [2, u32::MAX] {
        let direction = Direction::Ext;
        let unknown = CommitFault::UnknownBuffer { direction, index, count: 2 };
        assert_eq!(description.position(direction, index), Err(unknown));
    }
    assert_eq!(description.region(4), Err(CommitFault::UnknownRegion { index: 4, count: 4 }));
}

#[test]
fn an_inconsistent_description_is_refused_with_the_reason() {
    type Spoil = fn(&mut Description);
    let spoilt: [(Spoil, &str); 13] = [
        (|d| d.buffers[0].index = 1, "input 1 where 0 is due"),
        (|d| d.buffers[2].index = 0, "ext buffer 0 where 1 is due"),
        (|d| d.buffers[0].region = 4, "region 4 of 4"),
        (|d| d.buffers[0].offset = 1, "268203 bytes at 1 of a region of 268203"),
        (|d| d.buffers[0].offset = u64::MAX, "of a region of 268203"),
        (|d| d.buffers[0].size = 268202, "makes Some(268203)"),
        (|d| d.buffers[0].dtype = DType::Bytes, "makes None"),
        (|d| d.buffers[0].shape = Shape::from([usize::MAX, 2]), "makes None"),
        (|d| d.buffers[0].nwhc = [u32::MAX; 4], "nwhc"),
        (|d| d.regions[1].size = 0, "region 1 of 0 bytes"),
        (|d| d.regions[1].size = u64::MAX, "region 1 of"),
        (|d| d.buffers[1].label = "x".repeat(256), "label of 256 bytes"),
        (|d| d.regions.resize(MOST + 1, RegionInfo::new(1)), "at most 4096"),
    ];
    for (spoil, why) in spoilt {
        let mut description = inception();
        spoil(&mut description);
        let fault = description.check().unwrap_err().to_string();
        assert!(fault.contains(why), "{fault}: not {why}");
    }
}
