"""Ablation studies: each variant changes one setting, is trained with several seeds and flown on unseen scenes."""
