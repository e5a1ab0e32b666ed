// Dark, light, or as the system says.

type Choice = 'system' | 'light' | 'dark';

const KEY = 'sluice-theme';
const SYSTEM_IS_DARK = matchMedia('(prefers-color-scheme: dark)');

class Theme {
  choice = $state<Choice>('system');
  #systemIsDark = $state(SYSTEM_IS_DARK.matches);

  constructor() {
    const kept = localStorage.getItem(KEY);
    if (kept === 'light' || kept === 'dark') this.set(kept);
    SYSTEM_IS_DARK.addEventListener('change', ({ matches }) => (this.#systemIsDark = matches));
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
    return this.choice === 'dark' || (this.choice === 'system' && this.#systemIsDark);
  }

  toggle(): void {
    this.set(this.isDark ? 'light' : 'dark');
  }
}

export const theme = new Theme();
