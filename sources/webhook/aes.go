// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"crypto/aes"
	"crypto/cipher"
	"errors"
)

var errCiphertext = errors.New("not a ciphertext of this key")

// decryptCBC decrypts AES-CBC and takes the padding off, which fills blocks of blockSize bytes (PKCS #7).
func decryptCBC(key, iv, ciphertext []byte, blockSize int) ([]byte, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	if len(ciphertext) == 0 || len(ciphertext)%aes.BlockSize != 0 || len(iv) != aes.BlockSize {
		return nil, errCiphertext
	}
	out := make([]byte, len(ciphertext))
	cipher.NewCBCDecrypter(block, iv).CryptBlocks(out, ciphertext)
	pad := int(out[len(out)-1])
	if pad < 1 || pad > blockSize || pad > len(out) {
		return nil, errCiphertext
	}
	for _, b := range out[len(out)-pad:] {
		if int(b) != pad {
			return nil, errCiphertext
		}
	}
	return out[:len(out)-pad], nil
}

// encryptCBC is the way back.
func encryptCBC(key, iv, text []byte, blockSize int) ([]byte, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	pad := blockSize - len(text)%blockSize
	out := make([]byte, len(text)+pad)
	copy(out, text)
	for i := len(text); i < len(out); i++ {
		out[i] = byte(pad)
	}
	cipher.NewCBCEncrypter(block, iv).CryptBlocks(out, out)
	return out, nil
}
