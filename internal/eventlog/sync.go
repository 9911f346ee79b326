// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// syncer makes the block files of one stream durable. It keeps the last block open from before it is written to, so
// that a write-back error that someone else's sync has seen first is still reported here.
type syncer struct {
	blocks *blocks
	sync   func(*os.File) error // nil: nothing is synced, blocks are only followed

	mu    sync.Mutex // held while syncing and while a trim replaces files
	file  *os.File   // guarded by mu; block index, nil before the first
	index uint32     // guarded by mu
}

// newSyncer continues at the last block. After a crash the blocks that unacknowledged batches may have been written
// to are synced, so that no reader sees what a power loss could still take away.
func newSyncer(b *blocks, syncFile func(*os.File) error) (*syncer, error) {
	s := &syncer{blocks: b, sync: syncFile}
	files, err := blockFiles(b.dir)
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return s, nil
	}
	// Two batches can be on their way, of 4 MiB or one message each, or the smaller ones of an urgent stream, which are as much
	// together: four blocks.
	for _, index := range files[max(0, len(files)-4):] {
		if err := s.open(index); err != nil {
			return nil, errors.Join(err, s.close())
		}
		if err := s.one(); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	if s.sync != nil {
		if err := syncPath(b.dir); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	return s, nil
}

func (s *syncer) open(index uint32) error {
	f, err := os.OpenFile(s.blocks.path(index), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if s.file != nil {
		if err := s.file.Close(); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	s.file, s.index = f, index
	return nil
}

func (s *syncer) one() error {
	if s.sync == nil || s.file == nil {
		return nil
	}
	if err := s.sync(s.file); err != nil {
		return fmt.Errorf("sync %s: %w", s.file.Name(), err)
	}
	return nil
}

// commit makes everything durable that was written before the call, and returns the last block. Its cost is one sync, and one more for
// each block that is new, with one of the directory.
func (s *syncer) commit() (last uint32, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.one(); err != nil {
		return 0, err
	}
	fresh := false
	for {
		err := s.open(s.index + 1)
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return 0, err
		}
		if err := s.one(); err != nil {
			return 0, err
		}
		fresh = true
	}
	if fresh && s.sync != nil {
		if err := syncPath(s.blocks.dir); err != nil {
			return 0, err
		}
	}
	return s.index, nil
}

// follow tells the reader about blocks up to the last one, as commit has returned it.
func (s *syncer) follow(last uint32) error {
	list := s.blocks.snapshot()
	from := uint32(1)
	if len(list) > 0 {
		from = list[len(list)-1].index + 1
	}
	for index := from; index <= last; index++ {
		if _, err := s.blocks.add(index); err != nil {
			return err
		}
	}
	return nil
}

// exclusive runs fn, which may remove or replace block files, while nothing is synced; afterwards the last block is
// opened anew and synced with the first one and the directory, because a descriptor of a replaced file syncs nothing.
func (s *syncer) exclusive(fn func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := fn(); err != nil {
		return err
	}
	if s.file == nil {
		return nil
	}
	if err := s.open(s.index); err != nil {
		return err
	}
	if err := s.one(); err != nil {
		return err
	}
	if s.sync == nil {
		return nil
	}
	files, err := blockFiles(s.blocks.dir)
	if err != nil {
		return err
	}
	if len(files) > 0 {
		if err := syncPath(s.blocks.path(files[0])); err != nil {
			return err
		}
	}
	return syncPath(s.blocks.dir)
}

func (s *syncer) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	return err
}

// syncPath syncs a file or directory by name.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return errors.Join(fmt.Errorf("sync %s: %w", path, err), f.Close())
	}
	return f.Close()
}

// syncTree syncs the metadata files of a stream that was just made, and the directories that lead to them: JetStream
// leaves them to the page cache.
func syncTree(streamDir, root string) error {
	for _, name := range []string{"meta.inf", "meta.sum", "msgs"} {
		if err := syncPath(filepath.Join(streamDir, name)); err != nil {
			return err
		}
	}
	for dir := streamDir; ; dir = filepath.Dir(dir) {
		if err := syncPath(dir); err != nil {
			return err
		}
		if dir == root || dir == filepath.Dir(dir) {
			return nil
		}
	}
}
