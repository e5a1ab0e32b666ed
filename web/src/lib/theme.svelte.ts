// Dark, light, or as the system says.

type Choice = 'system' | 'light' | 'dark';

const KEY = 'sluice-theme';

class Theme {
  choice = $state<Choice>('system');

  constructor() {
    const kept = localStorage.getItem(KEY);
    if (kept === 'light' || kept === 'dark') this.set(kept);
  }

  set(choice: Choice): void {
    this.choice = choice;
    if (choice === 'system') {
      localStorage.removeItem(KEY);
      delete document.documentElement.dataset['theme'];
    } else {
      localStorage.setItem(KEY, choice);
      document.documentElement.dataset['theme'] = choice;
    }
  }

  get isDark(): boolean {
    return this.choice === 'dark' || (this.choice === 'system' && matchMedia('(prefers-color-scheme: dark)').matches);
  }

  toggle(): void {
    this.set(this.isDark ? 'light' : 'dark');
  }
}

export const theme = new Theme();
