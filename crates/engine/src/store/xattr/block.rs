//! The attribute block of an inode: reads it, and replaces it.

use crate::error::{Error, Result, XattrError};
use crate::store::alloc;
use crate::store::map;
use crate::store::txn::{BlockKind, Txn};
use crate::store::{Store, kind};
use lanefs_format::Inode;
use lanefs_format::xattr::{self as codec, Attr, BlockHeader};
use lanefs_journal::Buffer;

/// Returns the attribute block `block` of an inode, verified; `None` for block 0.
pub(super) fn load(store: &Store, ino: u32, block: u64) -> Result<Option<Buffer>> {
    if block == 0 {
        return Ok(None);
    }
    let seed = store.checksummer.fs_seed();
    let verify = |bytes: &[u8]| {
        seed.map_or(Ok(()), |seed| codec::verify_block(bytes, block, seed))
            .and_then(|()| codec::parse_block(bytes).map(|_| ()))
            .map_err(|source| XattrError::Block { ino, block, source }.into())
    };
    store.file_block(block, kind::XATTR, verify).map(Some)
}

/// Returns the attribute block of an inode, verified; `None` if it has none.
pub(super) fn of(store: &Store, inode: &Inode) -> Result<Option<Buffer>> {
    load(store, inode.ino, inode.file_acl)
}

/// Parses the attributes of a verified block. Hashes each of its values.
pub(super) fn parse(ino: u32, block: u64, bytes: &[u8]) -> Result<Vec<Attr<'_>>> {
    #[cfg(test)]
    super::tests::count_parse();
    codec::parse_block(bytes).map_err(|source| XattrError::Block { ino, block, source }.into())
}

fn header(ino: u32, buffer: &Buffer) -> Result<BlockHeader> {
    let block = buffer.block();
    BlockHeader::parse(&buffer.read()).map_err(|source| XattrError::Block { ino, block, source }.into())
}

/// Returns the bytes of a block with these attributes, `None` for an empty list.
///
/// # Errors
/// [`Error::XattrsTooLarge`] if they do not fit.
pub(super) fn encode(store: &Store, mut attrs: Vec<Attr<'_>>) -> Result<Option<Vec<u8>>> {
    if attrs.is_empty() {
        return Ok(None);
    }
    let mut bytes = vec![0; store.block_size as usize];
    if codec::encode_block(&mut bytes, &mut attrs) { Ok(Some(bytes)) } else { Err(Error::XattrsTooLarge) }
}

/// Reads what releasing a use of the inode's attribute block changes: the block, and, if it is
/// freed, its group's bitmap.
pub(super) fn hold_for_free(store: &Store, inode: &Inode) -> Result<impl Sized + use<>> {
    let Some(buffer) = of(store, inode)? else { return Ok(None) };
    let freed = header(inode.ino, &buffer)?.refcount <= 1;
    let bits = freed.then(|| alloc::hold_for_free(store, inode.file_acl, 1)).transpose()?;
    Ok(Some((buffer, bits)))
}

/// Makes `content` the inode's attribute block: an existing equal block, the inode's own block
/// changed in place, or a new block. The old block loses a user. Reads all blocks that change
/// before it changes any.
pub(super) fn replace(txn: &mut Txn<'_>, inode: &mut Inode, content: Option<Vec<u8>>) -> Result<()> {
    let (store, ino) = (txn.store(), inode.ino);
    let old = of(store, inode)?;
    if old.is_none() && content.is_some() {
        map::check_sectors(store, inode, 1)?;
    }
    // From here to the end no other inode may start or stop sharing a block.
    let mut sharing = store.xattr_sharing.lock();
    let old_header = old.as_ref().map(|old| header(ino, old)).transpose()?;
    let hash = content.as_ref().and_then(|content| BlockHeader::parse(content).ok()).map_or(0, |h| h.hash);
    let twin = match &content {
        Some(content) => {
            sharing.find(store, ino, hash, content).filter(|twin| twin.block() != inode.file_acl)
        }
        None => None,
    };
    if let (Some(content), None, Some(old), Some(BlockHeader { refcount: 1, hash: old_hash })) =
        (&content, &twin, &old, old_header)
    {
        write(txn, old, |bytes| bytes.copy_from_slice(content))?;
        sharing.forget(old_hash, old.block());
        sharing.remember(hash, old.block());
        return Ok(());
    }
    let _held = hold_for_free(store, inode)?;
    let new = match (&content, twin) {
        (None, _) => 0,
        (Some(_), Some(twin)) => {
            let users = header(ino, &twin)?.refcount + 1;
            write(txn, &twin, |bytes| codec::set_refcount(bytes, users))?;
            if users >= codec::EXT4_XATTR_REFCOUNT_MAX {
                sharing.forget(hash, twin.block());
            }
            twin.block()
        }
        (Some(content), None) => {
            let goal = store.layout().group_first_block(store.layout().inode_slot(ino)?.group)?;
            let block = txn.alloc_meta(goal)?;
            let buffer = txn.create(block)?;
            write(txn, &buffer, |bytes| bytes.copy_from_slice(content))?;
            buffer.set_verified(kind::XATTR);
            sharing.remember(hash, block);
            block
        }
    };
    if let (Some(old), Some(BlockHeader { refcount, hash })) = (old, old_header) {
        if refcount > 1 {
            write(txn, &old, |bytes| codec::set_refcount(bytes, refcount - 1))?;
            sharing.remember(hash, old.block());
        } else {
            sharing.forget(hash, old.block());
            txn.free(old.block(), 1, BlockKind::Metadata)?;
        }
    }
    // Every user of a shared block counts it among its own.
    let sectors = u64::from(store.block_size / 512);
    match (inode.file_acl != 0, new != 0) {
        (false, true) => inode.blocks += sectors,
        (true, false) => inode.blocks = inode.blocks.saturating_sub(sectors),
        _ => {}
    }
    inode.file_acl = new;
    Ok(())
}

fn write(txn: &Txn<'_>, buffer: &Buffer, change: impl FnOnce(&mut [u8])) -> Result<()> {
    let mut bytes = txn.write(buffer)?;
    change(&mut bytes);
    codec::seal_block(&mut bytes, buffer.block(), txn.store().checksummer.fs_seed());
    Ok(())
}
