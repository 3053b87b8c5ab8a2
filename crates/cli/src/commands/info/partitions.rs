//! The partitions of a disk.

use crate::failure::{OrCannot, Res};
use crate::output::Out;
use crate::quote::{JsonName, escaped};
use crate::size;
use lanefs_archive::content;
use lanefs_device::{BlockDevice, Partition, PartitionTable};
use serde::Serialize;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// A partition table as it is shown.
#[derive(Serialize)]
pub(super) struct TableRows {
    #[serde(flatten)]
    volume: JsonName,
    partition_table: &'static str,
    disk: String,
    partitions: Vec<PartitionRow>,
}

#[derive(Serialize)]
struct PartitionRow {
    number: u32,
    label: String,
    #[serde(rename = "type")]
    kind: String,
    type_code: String,
    start: u64,
    size: u64,
    /// What is in it; `None` for zeros.
    content: Option<String>,
    volume_label: Option<String>,
    volume_uuid: Option<String>,
    partuuid: String,
}

impl TableRows {
    pub(super) fn new(device: &dyn BlockDevice, table: PartitionTable, name: &OsString) -> Res<Self> {
        let mut partitions = Vec::with_capacity(table.partitions.len());
        for partition in table.partitions {
            let content = content_of(device, &partition).or_cannot("read", name.as_bytes())?;
            partitions.push(PartitionRow {
                number: partition.number,
                type_code: partition.kind.code(),
                kind: partition.kind.to_string(),
                label: partition.name,
                start: partition.start,
                size: partition.size,
                content,
                volume_label: partition.label,
                volume_uuid: partition.volume_uuid,
                partuuid: partition.uuid,
            });
        }
        let volume = JsonName::new(name.as_bytes());
        Ok(Self { volume, partition_table: table.scheme, disk: table.disk, partitions })
    }

    pub(super) fn show(&self, out: &mut Out) -> Res {
        writeln!(out, "Partition table {}, disk {}", self.partition_table, self.disk)?;
        writeln!(out, "\n{:>3} {:>10} {:>10}  {:<20} name, content, PARTUUID", "", "start", "size", "type")?;
        for row in &self.partitions {
            let text = |text: &str| escaped(text.as_bytes());
            let mut words = Vec::new();
            if !row.label.is_empty() {
                words.push(text(&row.label));
            }
            let label =
                row.volume_label.as_ref().map_or(String::new(), |label| format!(" '{}'", text(label)));
            words.push(format!("{}{label}", row.content.as_deref().unwrap_or("empty")));
            words.push(row.partuuid.clone());
            let (start, size) = (size::human(row.start), size::human(row.size));
            writeln!(out, "{:>3} {start:>10} {size:>10}  {:<20} {}", row.number, row.kind, words.join(", "))?;
        }
        Ok(())
    }
}

/// Returns what the start of a partition says that is in it.
fn content_of(device: &dyn BlockDevice, partition: &Partition) -> lanefs::Result<Option<String>> {
    let range = partition.range();
    if range.end > device.size() {
        return Ok(Some("reaches beyond the end of the disk".into()));
    }
    let mut head = vec![0; partition.size.min(content::HEAD as u64) as usize];
    device.read_at(&mut head, range.start)?;
    Ok(content::of_head(&head).map(content::Content::name))
}
